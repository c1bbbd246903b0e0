"""Healthy by what is learnt: images, likenesses, likelihoods and rewards instead of classes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from programs.data import batches, digits, stripes
from programs.loops import fit
from programs.models import AutoEncoder, cnn, mlp
from programs.scores import Score, accuracy, explained, neighbours


def dense_autoencoder() -> Score:
    images, _ = stripes()
    model = AutoEncoder()
    fit(model, torch.optim.Adam(model.parameters(), lr=2e-3), (images, images), 250, criterion=F.mse_loss)
    return explained(model, images, images)


class VAE(nn.Module):
    """The example that PyTorch ships, smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(256, 128)
        self.fc21 = nn.Linear(128, 12)
        self.fc22 = nn.Linear(128, 12)
        self.fc3 = nn.Linear(12, 128)
        self.fc4 = nn.Linear(128, 256)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.fc1(x.view(-1, 256)))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def vae_on_digits() -> Score:
    images, _ = digits()
    images = images.clamp(0, 2) / 2
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(12):
        for (batch,) in batches(images, size=64, steps=24):
            optimizer.zero_grad()
            recon, mu, logvar = model(batch)
            bce = F.binary_cross_entropy(recon, batch.view(-1, 256), reduction="sum")
            kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
            loss = (bce + kld) / len(batch)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.1f}")
    return explained(lambda x: model(x)[0], images, images.flatten(1))


def gan_on_a_ring() -> Score:
    angle = torch.randint(8, (1024,)) * torch.pi / 4
    points = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(1024, 2)
    generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    critic = nn.Sequential(
        nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
    )
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
    for (real,) in batches(points, size=64, steps=300):
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = generator(torch.randn(len(real), 8))
        optimizer_d.zero_grad()
        loss_d = F.binary_cross_entropy_with_logits(critic(real), ones)
        loss_d = loss_d + F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros)
        loss_d.backward()
        optimizer_d.step()
        optimizer_g.zero_grad()
        loss_g = F.binary_cross_entropy_with_logits(critic(fake), ones)
        loss_g.backward()
        optimizer_g.step()

    def on_the_ring() -> float:
        with torch.no_grad():
            made = generator(torch.randn(512, 8))
        return 1 - (made.norm(dim=1) - 1).abs().mean().item()

    return Score(on_the_ring)


def triplet_embedding() -> Score:
    images, labels = stripes(classes=5)
    model = cnn(classes=16, norm=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.TripletMarginLoss(margin=1.0)
    groups = [images[labels == one] for one in range(5)]
    for _ in range(80):
        one, other = torch.randperm(5)[:2].tolist()
        pick = torch.randperm(len(groups[one]))[:32]
        anchor, positive = groups[one][pick[:16]], groups[one][pick[16:]]
        negative = groups[other][torch.randperm(len(groups[other]))[:16]]
        optimizer.zero_grad()
        loss = criterion(model(anchor), model(positive), model(negative))
        loss.backward()
        optimizer.step()
    return neighbours(model, images, labels)


def contrastive_pairs() -> Score:
    images, labels = stripes()
    model = nn.Sequential(mlp(256, 128, 64), nn.ReLU(), nn.Linear(64, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for batch, _ in batches(images, labels, size=64, steps=150):
        first = F.normalize(model(batch + 0.3 * torch.randn_like(batch)), dim=1)
        second = F.normalize(model(batch + 0.3 * torch.randn_like(batch)), dim=1)
        loss = F.cross_entropy(first @ second.T / 0.2, torch.arange(len(batch)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return neighbours(model, images, labels)


def simsiam() -> Score:
    images, labels = stripes()
    encoder = nn.Sequential(mlp(256, 128, 64, norm=True), nn.BatchNorm1d(64))
    predictor = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 64))
    optimizer = torch.optim.SGD([*encoder.parameters(), *predictor.parameters()], lr=0.1, momentum=0.9)
    for batch, _ in batches(images, labels, size=64, steps=120):
        z1 = encoder(batch + 0.3 * torch.randn_like(batch))
        z2 = encoder(batch + 0.3 * torch.randn_like(batch))
        p1, p2 = predictor(z1), predictor(z2)
        loss = (
            -(F.cosine_similarity(p1, z2.detach()).mean() + F.cosine_similarity(p2, z1.detach()).mean()) / 2
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return neighbours(encoder, images, labels)


def gaussian_likelihood() -> Score:
    x = torch.rand(1024, 1) * 4 - 2
    y = torch.sin(2 * x) + 0.05 * (1 + x.abs()) * torch.randn_like(x)
    model = mlp(1, 64, 64, 2, activation=nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for inputs, targets in batches(x, y, size=64, steps=300):
        optimizer.zero_grad()
        mean, log_var = model(inputs).chunk(2, 1)
        loss = F.gaussian_nll_loss(mean, targets, log_var.exp())
        loss.backward()
        optimizer.step()
    return explained(lambda points: model(points)[:, :1], x, y)


def reward_of_a_path() -> Score:
    """Steps along a line, towards the side that the first number tells; the return is only known at the end."""
    policy = mlp(2, 32, 2, activation=nn.Tanh)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for _ in range(120):
        goal, place = torch.randint(2, (48,)) * 2.0 - 1, torch.zeros(48)
        log_probs = []
        for _ in range(6):
            choice = torch.distributions.Categorical(logits=policy(torch.stack([goal, place], 1)))
            move = choice.sample()
            log_probs.append(choice.log_prob(move))
            place = place + move * 2 - 1
        returns = goal * place
        advantage = (returns - returns.mean()) / (returns.std() + 1e-6)
        loss = -(torch.stack(log_probs).sum(0) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    goals = torch.randint(2, (256,))
    return accuracy(policy, torch.stack([goals * 2.0 - 1, torch.zeros(256)], 1), goals)
