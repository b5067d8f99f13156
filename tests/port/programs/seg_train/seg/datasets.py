import glob
import os

import numpy as np
import paddle

from seg.cvlibs import manager


@manager.DATASETS.add_component
class Cityscapes(paddle.io.Dataset):
    ignore_index = 255
    num_classes = 19

    def __init__(self, dataset_root, mode='train', size=(512, 1024)):
        super().__init__()
        self.mode, self.size = mode, size
        self.files = sorted(glob.glob(os.path.join(dataset_root, mode, '*.npz')))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, idx):
        sample = np.load(self.files[idx])
        img, label = sample['img'].astype('float32') / 127.5 - 1.0, sample['label']
        if self.mode == 'train':
            top = np.random.randint(0, img.shape[1] - self.size[0] + 1)
            left = np.random.randint(0, img.shape[2] - self.size[1] + 1)
            rows, columns = slice(top, top + self.size[0]), slice(left, left + self.size[1])
            img, label = img[:, rows, columns], label[rows, columns]
        return {'img': img, 'label': label}
