from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


def create_loader(folder, batch_size):
    augmented = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    dataset = ImageFolder(folder, augmented)
    return DataLoader(dataset, batch_size, shuffle=True, num_workers=8, pin_memory=True)
