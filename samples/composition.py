"""The picture `composition.jpg`: a Bauhaus poster, with every class of the data set in it.

Flat colours, hard edges in all directions and five regular textures: each of them lights up other channels.
"""

import math

import torch
from canvas import Canvas, Paint, colour, disc, line, polygon, ramp, rectangle
from dataset import CLASSES, SHAPES
from PIL import Image
from torch import Tensor
from torch.nn import functional

SIDE = 720
RED, BLUE, YELLOW, INK, PAPER = "#d33f2e", "#22518f", "#f0b429", "#1f1d24", "#f1e6d0"
TEAL, ROSE, ORANGE, SKY = "#2c8c85", "#e79a9c", "#e8762c", "#8fc1d8"


def composition(seed: int) -> Image.Image:
    canvas = Canvas(SIDE, SIDE, seed)
    x, y = canvas.x, canvas.y
    canvas.pixels = ramp((x + 2 * y) / (3 * SIDE), (0.0, "#f7eedb"), (1.0, "#e3d2b4")).clone()
    paint_planes(canvas)
    paint_textures(canvas)
    paint_figures(canvas)
    paint_strokes(canvas)
    # Paper: fibres of two sizes, and a darker rim.
    paper = 0.6 * canvas.noise(180, 180, octaves=2) + 0.4 * canvas.noise(12, 12, octaves=3)
    rim = 0.10 * (torch.hypot(x / SIDE - 0.5, y / SIDE - 0.5) * 1.5) ** 4
    canvas.pixels = canvas.pixels * (1 + 0.035 * paper - rim)
    return canvas.picture(grain=0.008)


def paint_planes(canvas: Canvas) -> None:
    """The large tilted areas behind everything."""
    x, y = canvas.x, canvas.y
    blue = polygon(x, y, (60, 330), (430, 70), (500, 170), (130, 430))
    place(canvas, blue, fade(canvas, SKY, "#c9dfe2", 0.6))
    rose = polygon(x, y, (330, 470), (690, 300), (720, 365), (360, 540))
    place(canvas, rose, fade(canvas, ROSE, "#f3c9b5", 0.2))
    green = polygon(x, y, (20, 560), (330, 470), (352, 548), (42, 640))
    place(canvas, green, fade(canvas, "#d9cba8", "#b9c3a0", 0.0))


def paint_textures(canvas: Canvas) -> None:
    """The five textures of the data set, each cut out by a shape."""
    x, y = canvas.x, canvas.y
    wheel = disc(x, y, 250, 262, 148)
    place(canvas, wheel, fade(canvas, RED, ORANGE, 0.9))
    canvas.paint(torch.maximum(texture(canvas, "stripes", 250, 262, 62, 0.6), wheel), "#7f1d22", 0.85)
    core = disc(x, y, 250, 262, 84)
    place(canvas, core, fade(canvas, YELLOW, "#f8d978", 0.5))
    canvas.paint(torch.maximum(texture(canvas, "dots", 250, 262, 44, 0.35), core), INK)

    # 1.34 is just under half of nine fields: the board ends where a field ends.
    board = figure(canvas, "square", 548, 176, 58 * 1.34 / 0.8, 0.32)
    place(canvas, board, PAPER)
    canvas.paint(torch.maximum(texture(canvas, "checkerboard", 548, 176, 58, 0.32), board), INK)

    flag = polygon(x, y, (66, 668), (66, 498), (330, 668))
    place(canvas, flag, fade(canvas, TEAL, "#1b5f6e", 1.2))
    canvas.paint(torch.maximum(texture(canvas, "waves", 66, 668, 48, 1.2), flag), "#d8eadb")

    sail = polygon(x, y, (668, 420), (668, 674), (508, 674))
    place(canvas, sail, fade(canvas, BLUE, "#3f7fc0", 0.4))
    canvas.paint(torch.maximum(texture(canvas, "stripes", 668, 420, 30, 0.0), sail), PAPER)


def paint_figures(canvas: Canvas) -> None:
    """The five outlines of the data set."""
    place(canvas, figure(canvas, "ring", 424, 420, 112, 0.0), fade(canvas, BLUE, "#2f86b8", 0.7))
    place(canvas, figure(canvas, "circle", 424, 420, 50, 0.0), fade(canvas, ORANGE, YELLOW, 2.2))
    place(canvas, figure(canvas, "star", 596, 366, 76, 0.25), fade(canvas, YELLOW, "#f6cf5f", 0.5))
    place(canvas, figure(canvas, "cross", 410, 606, 66, 0.42), fade(canvas, RED, "#b02a3a", 0.5))
    place(canvas, figure(canvas, "triangle", 124, 128, 92, 0.15), fade(canvas, TEAL, "#55b09a", 1.5))
    place(canvas, figure(canvas, "square", 372, 92, 50, -0.5), fade(canvas, INK, "#4a4657", 0.8))
    place(canvas, figure(canvas, "square", 168, 470, 46, 0.25), fade(canvas, YELLOW, ORANGE, 0.8))
    place(canvas, figure(canvas, "circle", 640, 560, 34, 0.0), RED)


def paint_strokes(canvas: Canvas) -> None:
    """Thin lines and arcs, which tie the figures together."""
    x, y = canvas.x, canvas.y
    canvas.paint(line(x, y, (40, 404), (690, 268), 3.5), INK)
    canvas.paint(line(x, y, (300, 30), (548, 690), 2.2), INK)
    canvas.paint(line(x, y, (36, 44), (300, 700), 1.4), INK, 0.7)
    for radius in range(176, 225, 12):
        quarter = torch.maximum((disc(x, y, 250, 262, radius)).abs() - 1.6, torch.maximum(x - 250, 262 - y))
        canvas.paint(quarter, INK)
    for spoke in range(9):
        angle = math.pi * (0.13 + spoke / 8 * 0.5)
        start = (596 + 92 * math.sin(angle), 366 - 92 * math.cos(angle))
        end = (596 + 122 * math.sin(angle), 366 - 122 * math.cos(angle))
        canvas.paint(line(x, y, start, end, 4), RED if spoke % 2 else INK)
    for step in range(7):
        left, bottom = 452 + 30 * step, 46 + 6 * step
        canvas.paint(rectangle(x, y, left, 40, left + 18, bottom), INK if step % 2 else BLUE)
    for step in range(5):
        canvas.paint(disc(x, y, 60 + 5 * step, 250 + 24 * step, 4 + 1.2 * step), INK)


def place(canvas: Canvas, distance: Tensor, paint: Paint) -> None:
    """Paint a shape over its soft shadow, as if it were cut out of paper."""
    moved = functional.pad(distance[None], (5, 0, 7, 0), mode="replicate")[0, :SIDE, :SIDE]
    canvas.paint(moved - 2, "#3a2a20", 0.30, edge=14)
    canvas.paint(distance, paint)


def fade(canvas: Canvas, start: str, end: str, angle: float) -> Tensor:
    """From one colour to another over 300 pixels in a direction (radians), and back over the next 300."""
    along = (canvas.x * math.cos(angle) + canvas.y * math.sin(angle)) / 300
    share = 0.5 - 0.5 * torch.cos(math.pi * along)
    return torch.lerp(colour(start).expand(3, *share.shape), colour(end).expand(3, *share.shape), share)


def figure(canvas: Canvas, name: str, x: float, y: float, radius: float, angle: float) -> Tensor:
    """Distance in pixels to the outline of the class ``name``, centred at x and y, turned by radians."""
    across, down = (canvas.x - x) / radius, (canvas.y - y) / radius
    cosine, sine = math.cos(angle), math.sin(angle)
    turned = cosine * across + sine * down, cosine * down - sine * across
    return SHAPES[CLASSES.index(name)](*turned) * radius


texture = figure
"""A texture has no end: its radius is only its scale, and its centre only shifts it."""
