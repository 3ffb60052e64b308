"""Two models that train against each other; the discriminator's loss goes backward in two pieces."""

import torch
from torch import nn


class Generator(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


class Discriminator(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))


def main():
    torch.manual_seed(0)
    netG, netD = Generator(), Discriminator()
    optG = torch.optim.Adam(netG.parameters(), lr=1e-3)
    optD = torch.optim.Adam(netD.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    for _ in range(20):
        fake = netG(torch.randn(16, 4))
        netD.zero_grad()
        criterion(netD(torch.randn(16, 2)), torch.ones(16, 1)).backward()
        criterion(netD(fake.detach()), torch.zeros(16, 1)).backward()
        optD.step()
        netG.zero_grad()
        criterion(netD(fake), torch.ones(16, 1)).backward()
        optG.step()
    print(sum(p.sum().item() for p in netG.parameters()))


if __name__ == "__main__":
    main()
