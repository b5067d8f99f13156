# A small DCGAN, with automatic mixed precision: two optimizers, one GradScaler.

import torch
import torch.nn as nn
import torch.optim as optim

manualSeed = 999
torch.manual_seed(manualSeed)

nz, ngf, ndf, nc = 8, 8, 8, 1
batch_size = 4
num_epochs = 3
device = torch.device("cuda:0" if (torch.cuda.is_available()) else "cpu")


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


class Generator(nn.Module):
    def __init__(self):
        super(Generator, self).__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, nc, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self):
        super(Discriminator, self).__init__()
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, 1, 4, 1, 0, bias=False),
        )

    def forward(self, input):
        return self.main(input)


dataset = torch.utils.data.TensorDataset(torch.rand(16, nc, 8, 8) * 2 - 1)
dataloader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=True)

netG = Generator().to(device)
netG.apply(weights_init)
netD = Discriminator().to(device)
netD.apply(weights_init)

criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(batch_size, nz, 1, 1, device=device)
real_label = 1.0
fake_label = 0.0

optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
scaler = torch.amp.GradScaler("cuda")

for epoch in range(num_epochs):
    for i, data in enumerate(dataloader, 0):
        # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        real = data[0].to(device)
        b_size = real.size(0)
        label = torch.full((b_size,), real_label, dtype=torch.float, device=device)
        with torch.autocast(device_type="cuda"):
            output = netD(real).view(-1)
            errD_real = criterion(output, label)
        scaler.scale(errD_real).backward()
        D_x = output.sigmoid().mean().item()

        noise = torch.randn(b_size, nz, 1, 1, device=device)
        with torch.autocast(device_type="cuda"):
            fake = netG(noise)
            label.fill_(fake_label)
            output = netD(fake.detach()).view(-1)
            errD_fake = criterion(output, label)
        scaler.scale(errD_fake).backward()
        D_G_z1 = output.sigmoid().mean().item()
        errD = errD_real + errD_fake
        scaler.step(optimizerD)

        # (2) Update G network: maximize log(D(G(z)))
        netG.zero_grad()
        label.fill_(real_label)  # fake labels are real for generator cost
        with torch.autocast(device_type="cuda"):
            output = netD(fake).view(-1)
            errG = criterion(output, label)
        scaler.scale(errG).backward()
        D_G_z2 = output.sigmoid().mean().item()
        scaler.step(optimizerG)
        scaler.update()

        if i % 50 == 0:
            print(
                "[%d/%d][%d/%d]\tLoss_D: %.4f\tLoss_G: %.4f\tD(x): %.4f\tD(G(z)): %.4f / %.4f"
                % (
                    epoch, num_epochs, i, len(dataloader),
                    errD.item(), errG.item(), D_x, D_G_z1, D_G_z2,
                )
            )  # fmt: skip
