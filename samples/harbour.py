"""The picture `harbour.jpg`: dusk over a small harbour.

Made to be looked at through convolutions: smooth gradients (sky), edges of all directions (sails, roofs,
lighthouse), regular textures (windows, bands, planks) and irregular ones (clouds, slopes, water).
"""

import torch
from canvas import Canvas, colour, disc, line, polygon, ramp, rectangle, smoothstep
from PIL import Image
from torch import Tensor
from torch.nn import functional

WIDTH, HEIGHT = 800, 640
WATERLINE = 400
SUN = (462.0, 318.0)


def harbour(seed: int) -> Image.Image:
    canvas = Canvas(WIDTH, HEIGHT, seed)
    paint_sky(canvas)
    paint_ridges(canvas)
    paint_houses(canvas)
    paint_lighthouse(canvas)
    ripples = paint_water(canvas)
    mirrored = 2 * 452 - canvas.y + 40 * ripples
    paint_boat(canvas, canvas.x + 14 * ripples, mirrored, opacity=0.55)
    paint_boat(canvas, canvas.x, canvas.y)
    paint_jetty(canvas)
    return canvas.picture(grain=0.012)


def paint_sky(canvas: Canvas) -> None:
    x, y = canvas.x, canvas.y
    canvas.pixels = ramp(
        y / WATERLINE,
        (0.0, "#141a45"), (0.3, "#43327a"), (0.55, "#b04a7c"), (0.75, "#f07f58"), (0.95, "#ffcf7a"),
    )  # fmt: skip
    for _ in range(70):
        star = disc(x, y, canvas.random(0, WIDTH), canvas.random(0, 150), canvas.random(0.2, 1.1))
        canvas.paint(star, "#fff4dc", canvas.random(0.4, 1.0))
    from_sun = torch.hypot(x - SUN[0], y - SUN[1])
    canvas.glow(0.75 * torch.exp(-from_sun / 110), "#ff9a4d")
    clouds = canvas.noise(9, 2, octaves=6, roughness=0.55) + 0.35 * torch.sin(y / 19 + x / 260)
    cover = smoothstep((clouds - 0.15) / 0.75) * smoothstep((y - 20) / 130)
    lit = ramp(from_sun / 420, (0.0, "#ffe2a0"), (0.45, "#f0735f"), (1.0, "#5a3a80"))
    canvas.blend(0.8 * cover, lit)
    canvas.blend(0.45 * smoothstep((clouds - 0.75) / 0.6) * cover, "#4b2c63")
    canvas.paint(disc(x, y, *SUN, 46), "#fff3c4", edge=2)
    canvas.glow(0.6 * torch.exp(-from_sun / 38), "#ffd27a")


def paint_ridges(canvas: Canvas) -> None:
    """Mountains, the farther the paler: each ridge fades into the haze of the valley before it."""
    layers = (("#b8577c", 92, 3), ("#86457a", 66, 4), ("#573567", 44, 5), ("#33254f", 24, 7))
    for depth, (paint, height, bumps) in enumerate(layers):
        profile = canvas.noise(1, bumps, 7, 0.42 + 0.04 * depth)[0]  # a height for each column
        crest = WATERLINE - height - 0.62 * height * profile
        below = canvas.y - crest
        # Light and shadow on the slopes: noise stretched downwards looks like gullies.
        gullies = canvas.noise(16, 26, octaves=4, roughness=0.6)
        shade = colour(paint) * (1 + (0.10 + 0.05 * depth) * gullies)
        haze = smoothstep(below / (height * 1.9)) * (0.75 - 0.17 * depth)
        canvas.paint(-below, torch.lerp(shade, colour("#f3a07a").expand_as(shade), haze))


def paint_houses(canvas: Canvas) -> None:
    """A row of gabled houses on the left quay, with lit windows."""
    x, y = canvas.x, canvas.y
    walls = ("#7a3b4f", "#c98a5a", "#3f4f7a", "#a8504a", "#d9b48a")
    left = -22.0
    for number, wall in enumerate(walls):
        width, height = canvas.random(48, 60), canvas.random(62, 104)
        right, top, base = left + width, WATERLINE - height, WATERLINE - 6
        front = rectangle(x, y, left, top, right, base)
        canvas.paint(front, colour(wall) * (0.80 + 0.22 * (x - left) / width))
        bricks = torch.minimum(y.remainder(5), (x + 4 * (y / 5).floor().remainder(2)).remainder(9))
        canvas.paint(torch.maximum(front, bricks - 0.6), "#20183a", 0.25)
        middle, peak = (left + right) / 2, top - width * 0.62
        roof = polygon(x, y, (left - 4, top), (middle, peak), (right + 4, top))
        canvas.paint(roof, "#2c2046" if number % 2 else "#5b2a40")
        canvas.paint(torch.maximum(roof, (y.remainder(6) - 3).abs() - 1), "#d9795f", 0.35)
        canvas.paint(disc(x, y, middle, top - width * 0.2, 5.5), "#ffd98a")
        for row in range(int(height // 27)):
            for column in range(3):
                centre_x, centre_y = left + width * (column + 0.5) / 3, top + 15 + 25 * row
                pane = rectangle(x, y, centre_x - 4.5, centre_y - 7, centre_x + 4.5, centre_y + 7)
                canvas.paint(pane, "#ffdf8e" if canvas.random() < 0.6 else "#241c44")
                bars = torch.minimum((x - centre_x).abs(), (y - centre_y).abs()) - 0.7
                canvas.paint(torch.maximum(pane, bars), "#3a2440")
        left = right
    canvas.paint(rectangle(x, y, -9, WATERLINE - 8, left + 14, WATERLINE + 9), "#2a2140")


def paint_lighthouse(canvas: Canvas) -> None:
    x, y, middle = canvas.x, canvas.y, 604.0
    lamp = 168.0
    reach = (x - middle).abs()
    for lower, upper in ((0.0, 0.16), (-0.10, 0.03)):  # the two beams of the lamp, fading with distance
        offset = (y - lamp) / reach.clamp(min=1) * (1 if lower == 0 else -1)
        inside = smoothstep((offset - lower) / 0.05) * smoothstep((upper - offset) / 0.05)
        side = x < middle if lower == 0 else x > middle
        canvas.glow(0.5 * inside * side * torch.exp(-reach / 260), "#ffe9ae")

    base, top = WATERLINE - 14, 192
    half = 17 + 11 * ((y - top) / (base - top))
    tower = torch.maximum((x - middle).abs() - half, (y - (base + top) / 2).abs() - (base - top) / 2)
    roundness = 1 - 0.55 * smoothstep((x - middle + 10) / 42) - 0.15 * smoothstep((middle - 8 - x) / 20)
    band = (((y - top) / 39).remainder(2) - 1).abs() - 0.5
    canvas.paint(tower, colour("#f7ead6") * roundness)
    canvas.paint(torch.maximum(tower, band * 39), colour("#c8323a") * roundness)
    for window in (226, 312):
        canvas.paint(rectangle(x, y, middle - 5, window, middle + 4, window + 15), "#2a1c3c")
    crest = WATERLINE + 8 - 44 * torch.exp(-(((x - middle - 12) / 84) ** 2)) - 7 * canvas.noise(1, 24)[0]
    facets = canvas.noise(60, 40, octaves=4, roughness=0.7) - (x - middle) / 150
    canvas.paint(crest - y, ramp(facets, (-0.9, "#150f2c"), (0.0, "#4a3152"), (0.9, "#a8626a")))

    canvas.paint(rectangle(x, y, middle - 27, 185, middle + 27, 192), "#2a2140")
    for post in range(-24, 25, 8):
        canvas.paint(line(x, y, (middle + post, 176), (middle + post, 188), 1.4), "#2a2140")
    canvas.paint(line(x, y, (middle - 25, 176), (middle + 25, 176), 1.6), "#2a2140")
    canvas.paint(rectangle(x, y, middle - 13, 150, middle + 13, 186), "#ffe9a8")
    for bar in (-13, -4.5, 4.5, 13):
        canvas.paint(line(x, y, (middle + bar, 150), (middle + bar, 186), 1.8), "#2a2140")
    canvas.paint(polygon(x, y, (middle - 18, 151), (middle, 130), (middle + 18, 151)), "#a3283a")
    canvas.paint(line(x, y, (middle, 131), (middle, 118), 2), "#2a2140")
    canvas.glow(0.8 * torch.exp(-torch.hypot(x - middle, y - lamp) / 26), "#ffe2a0")


def paint_water(canvas: Canvas) -> Tensor:
    """Mirror what lies above the waterline, broken by ripples (H, W) which grow towards the viewer."""
    x, y = canvas.x, canvas.y
    depth = ((y - WATERLINE) / (HEIGHT - WATERLINE)).clamp(min=0)  # 0 at the far shore, 1 at the lower edge
    # Rows of waves come closer to each other with distance, as 1 / depth does in perspective.
    distance = 9 / (depth + 0.12)
    swell = canvas.noise(60, 9, octaves=4, roughness=0.6)
    ripples = (torch.sin(distance * 5 + 5 * swell) + 0.8 * swell) * (0.08 + 0.5 * depth)

    mirrored_y = (2 * WATERLINE - y + 26 * ripples).clamp(0, WATERLINE - 1)
    mirrored_x = x + 9 * ripples
    grid = torch.stack((mirrored_x / WIDTH, mirrored_y / HEIGHT), dim=-1) * 2 - 1
    mirror = functional.grid_sample(canvas.pixels[None], grid[None], "bilinear", "border", False)[0]
    deep = torch.lerp(mirror * colour("#c8c0e0"), colour("#16204e").expand_as(mirror), 0.15 + 0.45 * depth)
    crests = smoothstep((ripples - 0.25) / 0.5)
    deep = torch.lerp(deep, colour("#8f7fc0").expand_as(deep), 0.35 * crests)
    canvas.paint(WATERLINE - y, deep)

    path = torch.exp(-(((x - SUN[0]) / (26 + 75 * depth)) ** 2)) * (y > WATERLINE)
    canvas.glow(0.85 * path * smoothstep((ripples / (0.08 + 0.5 * depth) - 0.1) / 0.9), "#ffcf7e")
    return ripples


def paint_boat(canvas: Canvas, x: Tensor, y: Tensor, opacity: float = 1.0) -> None:
    """A sailing boat at the coordinates ``x`` and ``y``: its own ones, or those of its reflection."""
    mast, foot = 330.0, 418.0
    hull = polygon(x, y, (238, 420), (424, 416), (394, 452), (262, 452))
    canvas.paint(line(x, y, (mast, 190), (mast, 424), 4), "#3a2030", opacity)
    main = polygon(x, y, (mast - 5, 200), (mast - 5, foot - 12), (234, foot - 6))
    canvas.paint(main, colour("#f6e3c8") * (0.78 + 0.22 * (x - 234) / 96).clamp(0, 1), opacity)
    seams = ((y + 0.35 * x).remainder(44) - 22).abs() - 7
    canvas.paint(torch.maximum(main, seams), "#d8543f", opacity)
    jib = polygon(x, y, (mast + 6, 214), (416, foot - 6), (mast + 6, foot - 14))
    canvas.paint(jib, colour("#ffd9a0") * (1.0 - 0.25 * (x - mast) / 86).clamp(0, 1), opacity)
    fields = torch.maximum((x.remainder(22) - 11).abs() - 5.5, (y.remainder(22) - 11).abs() - 5.5)
    canvas.paint(torch.maximum(jib, fields), "#2f6f8f", 0.8 * opacity)
    canvas.paint(line(x, y, (mast, 190), (238, 420), 1.2), "#2a1c30", opacity)
    canvas.paint(line(x, y, (mast, 190), (424, 416), 1.2), "#2a1c30", opacity)
    canvas.paint(hull, colour("#6b2737") * (1.1 - 0.5 * ((y - 416) / 36)).clamp(0, 1.2), opacity)
    canvas.paint(torch.maximum(hull, (y - 428 + 0.01 * x).abs() - 3), "#f3d9b0", opacity)
    canvas.paint(polygon(x, y, (mast, 176), (mast + 30, 183), (mast, 190)), "#e8b04a", opacity)


def paint_jetty(canvas: Canvas) -> None:
    """A wooden jetty at the lower right, its planks running away from the viewer."""
    x, y = canvas.x, canvas.y
    horizon_x, horizon_y = 420.0, 330.0
    nearness = (y - horizon_y) / (HEIGHT - horizon_y)
    across = (x - horizon_x) / nearness.clamp(min=0.05)  # constant along lines to the vanishing point
    deck = torch.maximum(torch.maximum(150 - across, across - 470) * nearness, 520 - y)
    grain = canvas.noise(90, 14, octaves=3)
    boards = 46 / nearness.clamp(min=0.05)
    shade = 0.5 + 0.35 * grain + 0.3 * torch.sin(boards.floor() * 2.4)  # no two boards alike
    wood = ramp(shade, (0.0, "#3b2538"), (1.0, "#a06a56"))
    canvas.paint(deck, wood)
    canvas.paint(torch.maximum(deck, ((boards.remainder(1) - 0.5).abs() - 0.44) * -24), "#1b1230", 0.9)
    for side in (150, 470):
        canvas.paint(torch.maximum((across - side).abs() * nearness - 5 * nearness, 519 - y), "#241833")
    for near in (0.66, 0.82, 1.0):
        for side in (150, 470):
            post_x, post_y = horizon_x + side * near, horizon_y + (HEIGHT - horizon_y) * near
            post = rectangle(x, y, post_x - 11 * near, post_y - 66 * near, post_x + 11 * near, post_y + 30)
            canvas.paint(post, ramp((x - post_x) / (22 * near) + 0.5, (0.0, "#8a5a50"), (1.0, "#22162c")))
            cap = torch.hypot((x - post_x) / 11, (y - post_y + 66 * near) / 4) - near
            canvas.paint(cap * 6, "#c08a6a")
