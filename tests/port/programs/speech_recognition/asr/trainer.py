import json
import os
import shutil
import time
from contextlib import nullcontext
from datetime import timedelta

import paddle
import yaml
from paddle.distributed import fleet
from paddle.io import DataLoader
from tqdm import tqdm
from visualdl import LogWriter

from asr import SUPPORT_MODEL, __version__
from asr.data.reader import ASRDataset, collate_fn
from asr.data.sampler import SortagradBatchSampler, SortagradDistributedBatchSampler
from asr.optimizer.scheduler import CosineWithWarmup, NoamHoldAnnealing, WarmupLR
from asr.utils.logger import setup_logger
from asr.utils.metrics import cer, greedy_decoder_batch, labels_to_string, wer
from asr.utils.utils import convert_string_based_on_type, dict_to_object, print_arguments

logger = setup_logger(__name__)


class ASRTrainer(object):
    def __init__(self, configs, use_gpu=True, overwrites=None):
        """Training, evaluation and export of a recognizer.

        :param configs: the path of the configuration, or what a yaml file says
        :param use_gpu: whether to use a GPU
        :param overwrites: values over those of the file, "train_conf.max_epoch=50", several with commas
        """
        if use_gpu:
            assert paddle.is_compiled_with_cuda(), 'no GPU'
            paddle.device.set_device("gpu")
        else:
            os.environ['CUDA_VISIBLE_DEVICES'] = '-1'
            paddle.device.set_device("cpu")
        # read the configuration
        if isinstance(configs, str):
            # a name is that of one of our own files
            absolute_path = os.path.dirname(__file__)
            config_path = os.path.join(absolute_path, f"configs/{configs}.yml")
            configs = config_path if os.path.exists(config_path) else configs
            with open(configs, 'r', encoding='utf-8') as f:
                configs = yaml.load(f.read(), Loader=yaml.FullLoader)
        self.configs = dict_to_object(configs)
        # values over those of the file
        if overwrites:
            overwrites = overwrites.split(",")
            for overwrite in overwrites:
                keys, value = overwrite.strip().split("=")
                attrs = keys.split('.')
                current_level = self.configs
                for attr in attrs[:-1]:
                    current_level = getattr(current_level, attr)
                before_value = getattr(current_level, attrs[-1])
                setattr(current_level, attrs[-1], convert_string_based_on_type(before_value, value))
        print_arguments(configs=self.configs)
        self.local_rank = 0
        self.use_gpu = use_gpu
        assert self.configs.use_model in SUPPORT_MODEL, f'no such model: {self.configs.use_model}'
        self.model = None
        self.test_loader = None
        self.amp_scaler = None

    def __setup_dataloader(self, augment_conf_path=None, is_train=False):
        augmentation_config = '{}'
        if augment_conf_path is not None and os.path.exists(augment_conf_path) and is_train:
            with open(augment_conf_path, encoding='utf8') as f:
                augmentation_config = f.read()
        conf = self.configs.dataset_conf
        if is_train:
            self.train_dataset = ASRDataset(preprocess_configs=self.configs.preprocess_conf,
                                            data_manifest=conf.train_manifest,
                                            vocab_filepath=conf.dataset_vocab,
                                            min_duration=conf.min_duration,
                                            max_duration=conf.max_duration,
                                            augmentation_config=augmentation_config,
                                            train=is_train)
            # several GPUs
            if paddle.distributed.get_world_size() > 1 and self.use_gpu:
                self.train_batch_sampler = SortagradDistributedBatchSampler(
                    self.train_dataset, batch_size=conf.batch_size, sortagrad=True, drop_last=True)
            else:
                self.train_batch_sampler = SortagradBatchSampler(
                    self.train_dataset, batch_size=conf.batch_size, sortagrad=True, drop_last=True)
            self.train_loader = DataLoader(dataset=self.train_dataset,
                                           collate_fn=collate_fn,
                                           prefetch_factor=conf.prefetch_factor,
                                           batch_sampler=self.train_batch_sampler,
                                           num_workers=conf.num_workers)
        self.test_dataset = ASRDataset(preprocess_configs=self.configs.preprocess_conf,
                                       data_manifest=conf.test_manifest,
                                       vocab_filepath=conf.dataset_vocab,
                                       min_duration=conf.min_duration,
                                       max_duration=conf.max_duration)
        self.test_loader = DataLoader(dataset=self.test_dataset,
                                      batch_size=conf.batch_size,
                                      collate_fn=collate_fn,
                                      num_workers=conf.num_workers)

    def __setup_model(self, input_dim, vocab_size, is_train=False):
        from asr.model.conformer import ConformerModel
        from asr.model.deepspeech2 import DeepSpeech2Model
        if self.configs.use_model in ('conformer', 'squeezeformer'):
            self.model = ConformerModel(input_dim=input_dim,
                                        vocab_size=vocab_size,
                                        encoder_conf=self.configs.encoder_conf,
                                        decoder_conf=self.configs.decoder_conf,
                                        **self.configs.model_conf)
        elif self.configs.use_model == 'deepspeech2':
            self.model = DeepSpeech2Model(input_dim=input_dim,
                                          vocab_size=vocab_size,
                                          encoder_conf=self.configs.encoder_conf)
        else:
            raise Exception('no such model: {}'.format(self.configs.use_model))
        if is_train:
            if self.configs.train_conf.enable_amp:
                # mixed precision, part 2: the GradScaler
                self.amp_scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
            # the learning rate
            scheduler_conf = self.configs.optimizer_conf.scheduler_conf
            scheduler = self.configs.optimizer_conf.scheduler
            learning_rate = float(self.configs.optimizer_conf.learning_rate)
            if scheduler == 'WarmupLR':
                self.scheduler = WarmupLR(learning_rate=learning_rate, **scheduler_conf)
            elif scheduler == 'NoamHoldAnnealing':
                self.scheduler = NoamHoldAnnealing(learning_rate=learning_rate, **scheduler_conf)
            elif scheduler == 'CosineWithWarmup':
                self.scheduler = CosineWithWarmup(learning_rate=learning_rate, **scheduler_conf)
            else:
                raise Exception(f'no such schedule: {scheduler}')
            # the optimizer
            optimizer = self.configs.optimizer_conf.optimizer
            weight_decay = float(self.configs.optimizer_conf.weight_decay)
            grad_clip = paddle.nn.ClipGradByGlobalNorm(clip_norm=self.configs.train_conf.grad_clip)
            if optimizer == 'Adam':
                self.optimizer = paddle.optimizer.Adam(parameters=self.model.parameters(),
                                                       learning_rate=self.scheduler,
                                                       weight_decay=weight_decay,
                                                       grad_clip=grad_clip)
            elif optimizer == 'AdamW':
                self.optimizer = paddle.optimizer.AdamW(parameters=self.model.parameters(),
                                                        learning_rate=self.scheduler,
                                                        weight_decay=weight_decay,
                                                        grad_clip=grad_clip)
            elif optimizer == 'Momentum':
                momentum = self.configs.optimizer_conf.momentum
                self.optimizer = paddle.optimizer.Momentum(parameters=self.model.parameters(),
                                                           momentum=momentum,
                                                           learning_rate=self.scheduler,
                                                           weight_decay=weight_decay,
                                                           grad_clip=grad_clip)
            else:
                raise Exception(f'no such optimizer: {optimizer}')

    def __load_pretrained(self, pretrained_model):
        if pretrained_model is None:
            return
        if os.path.isdir(pretrained_model):
            pretrained_model = os.path.join(pretrained_model, 'model.pdparams')
        assert os.path.exists(pretrained_model), f"{pretrained_model} does not exist!"
        model_dict = self.model.state_dict()
        model_state_dict = paddle.load(pretrained_model)
        for name, weight in model_dict.items():
            if name not in model_state_dict:
                logger.warning('Lack weight: {}'.format(name))
            elif list(weight.shape) != list(model_state_dict[name].shape):
                logger.warning('{} not used, its shape is another'.format(name))
                model_state_dict.pop(name, None)
        self.model.set_state_dict(model_state_dict)
        logger.info(f'[GPU:{self.local_rank}] loaded {pretrained_model}')

    def __model_dir(self, save_model_path, name):
        feature = self.configs.preprocess_conf.feature_method
        return os.path.join(save_model_path, f'{self.configs.use_model}_{feature}', name)

    def __load_checkpoint(self, save_model_path, resume_model):
        last_epoch, best_error_rate = -1, 1.0
        last_model_dir = self.__model_dir(save_model_path, 'last_model')
        if resume_model is None and not os.path.exists(os.path.join(last_model_dir, 'model.pdparams')):
            return last_epoch, best_error_rate
        if resume_model is None:
            resume_model = last_model_dir
        self.model.set_state_dict(paddle.load(os.path.join(resume_model, 'model.pdparams')))
        self.optimizer.set_state_dict(paddle.load(os.path.join(resume_model, 'optimizer.pdopt')))
        with open(os.path.join(resume_model, 'model.state'), 'r', encoding='utf-8') as f:
            json_data = json.load(f)
            last_epoch = json_data['last_epoch'] - 1
            best_error_rate = json_data.get('test_cer', json_data.get('test_wer', best_error_rate))
        logger.info(f'[GPU:{self.local_rank}] goes on from {resume_model}')
        return last_epoch, best_error_rate

    def __save_checkpoint(self, save_model_path, epoch_id, error_rate=1.0, test_loss=1e3, best_model=False):
        name = 'best_model' if best_model else 'epoch_{}'.format(epoch_id)
        model_path = self.__model_dir(save_model_path, name)
        os.makedirs(model_path, exist_ok=True)
        paddle.save(self.optimizer.state_dict(), os.path.join(model_path, 'optimizer.pdopt'))
        paddle.save(self.model.state_dict(), os.path.join(model_path, 'model.pdparams'))
        with open(os.path.join(model_path, 'model.state'), 'w', encoding='utf-8') as f:
            data = {"last_epoch": epoch_id, f"test_{self.configs.metrics_type}": error_rate,
                    "test_loss": test_loss, "version": __version__}
            f.write(json.dumps(data))
        if not best_model:
            last_model_path = self.__model_dir(save_model_path, 'last_model')
            shutil.rmtree(last_model_path, ignore_errors=True)
            shutil.copytree(model_path, last_model_path)
            # keep the last few
            old_model_path = self.__model_dir(save_model_path, 'epoch_{}'.format(epoch_id - 3))
            if os.path.exists(old_model_path):
                shutil.rmtree(old_model_path)
        logger.info('saved to {}'.format(model_path))

    def __train_epoch(self, epoch_id, save_model_path, writer, nranks):
        train_times, reader_times, batch_times = [], [], []
        start = time.time()
        sum_batch = len(self.train_loader) * self.configs.train_conf.max_epoch
        for batch_id, batch in enumerate(self.train_loader()):
            inputs, labels, input_lens, label_lens = batch
            reader_times.append((time.time() - start) * 1000)
            start_step = time.time()
            num_utts = label_lens.shape[0]
            if num_utts == 0:
                continue
            # the model, in mixed precision or not
            with paddle.amp.auto_cast(enable=self.configs.train_conf.enable_amp, level='O1'):
                loss_dict = self.model(inputs, input_lens, labels, label_lens)
            # loss backward
            if nranks > 1 and batch_id % self.configs.train_conf.accum_grad != 0:
                context = self.model.no_sync
            else:
                context = nullcontext
            with context():
                loss = loss_dict['loss'] / self.configs.train_conf.accum_grad
                # mixed precision or not
                if self.configs.train_conf.enable_amp:
                    # the loss, times the loss scale
                    scaled = self.amp_scaler.scale(loss)
                    scaled.backward()
                else:
                    loss.backward()

            # a step
            if batch_id % self.configs.train_conf.accum_grad == 0:
                if self.local_rank == 0 and writer is not None:
                    writer.add_scalar('Train/Loss', loss.numpy(), self.train_step)
                    writer.add_scalar('Train/lr', self.scheduler.get_lr(), self.train_step)
                # mixed precision or not
                if self.configs.train_conf.enable_amp:
                    # unscales, then updates the parameters
                    self.amp_scaler.step(self.optimizer)
                    # the next loss scale
                    self.amp_scaler.update()
                else:
                    self.optimizer.step()
                self.optimizer.clear_grad()
                self.scheduler.step()
                self.train_step += 1
            batch_times.append((time.time() - start_step) * 1000)

            # one process prints
            train_times.append((time.time() - start) * 1000)
            if batch_id % self.configs.train_conf.log_interval == 0:
                seconds = sum(train_times) / len(train_times) / 1000
                train_speed = self.configs.dataset_conf.batch_size / seconds
                left = sum_batch - (epoch_id - 1) * len(self.train_loader) - batch_id
                eta_str = str(timedelta(seconds=int(seconds * left)))
                logger.info(f'Train epoch: [{epoch_id}/{self.configs.train_conf.max_epoch}], '
                            f'batch: [{batch_id}/{len(self.train_loader)}], '
                            f'loss: {float(loss):.5f}, '
                            f'learning_rate: {self.scheduler.get_lr():>.8f}, '
                            f'reader_cost: {(sum(reader_times) / len(reader_times) / 1000):.4f}, '
                            f'batch_cost: {(sum(batch_times) / len(batch_times) / 1000):.4f}, '
                            f'ips: {train_speed:.4f} speech/sec, '
                            f'eta: {eta_str}')
                train_times = []
            # also after so many steps
            if batch_id % 10000 == 0 and batch_id != 0 and self.local_rank == 0:
                self.__save_checkpoint(save_model_path=save_model_path, epoch_id=epoch_id)
            start = time.time()

    def train(self,
              save_model_path='models/',
              resume_model=None,
              pretrained_model=None,
              augment_conf_path='configs/augmentation.json'):
        """Train the model.

        :param save_model_path: where models are kept
        :param resume_model: go on from this
        :param pretrained_model: begin with the weights of this
        :param augment_conf_path: how sounds are changed
        """
        paddle.seed(1000)
        # greedy, as it is fast
        self.configs.decoder = 'ctc_greedy'
        nranks = paddle.distributed.get_world_size()
        self.local_rank = paddle.distributed.get_rank()
        writer = None
        if self.local_rank == 0:
            writer = LogWriter(logdir='log')

        if nranks > 1 and self.use_gpu:
            strategy = fleet.DistributedStrategy()
            fleet.init(is_collective=True, strategy=strategy)

        self.__setup_dataloader(augment_conf_path=augment_conf_path, is_train=True)
        self.__setup_model(input_dim=self.test_dataset.feature_dim,
                           vocab_size=self.test_dataset.vocab_size,
                           is_train=True)

        if nranks > 1 and self.use_gpu:
            self.optimizer = fleet.distributed_optimizer(self.optimizer)
            self.model = fleet.distributed_model(self.model)
        logger.info('samples: {}'.format(len(self.train_dataset)))

        self.__load_pretrained(pretrained_model=pretrained_model)
        last_epoch, best_error_rate = self.__load_checkpoint(save_model_path=save_model_path,
                                                             resume_model=resume_model)
        test_step, self.train_step = 0, 0
        last_epoch += 1
        self.train_batch_sampler.epoch = last_epoch
        for epoch_id in range(last_epoch, self.configs.train_conf.max_epoch):
            epoch_id += 1
            start_epoch = time.time()
            self.__train_epoch(epoch_id=epoch_id, save_model_path=save_model_path, writer=writer,
                               nranks=nranks)
            logger.info('=' * 70)
            loss, error_result = self.evaluate(resume_model=None)
            logger.info('Test epoch: {}, time/epoch: {}, loss: {:.5f}, {}: {:.5f}'.format(
                epoch_id, str(timedelta(seconds=(time.time() - start_epoch))), loss,
                self.configs.metrics_type, error_result))
            logger.info('=' * 70)
            test_step += 1
            self.model.train()
            if self.local_rank == 0:
                writer.add_scalar('Test/{}'.format(self.configs.metrics_type), error_result, test_step)
                writer.add_scalar('Test/Loss', loss, test_step)
                if error_result <= best_error_rate:
                    best_error_rate = error_result
                    self.__save_checkpoint(save_model_path=save_model_path, epoch_id=epoch_id,
                                           error_rate=error_result, test_loss=loss, best_model=True)
                self.__save_checkpoint(save_model_path=save_model_path, epoch_id=epoch_id,
                                       error_rate=error_result, test_loss=loss)

    def evaluate(self, resume_model='models/conformer/best_model/', display_result=False):
        """Evaluate the model.

        :param resume_model: the model
        :param display_result: whether to print what was recognized
        :return: loss and error rate
        """
        if self.test_loader is None:
            self.__setup_dataloader()
        if self.model is None:
            self.__setup_model(input_dim=self.test_dataset.feature_dim,
                               vocab_size=self.test_dataset.vocab_size)
        if resume_model is not None:
            if os.path.isdir(resume_model):
                resume_model = os.path.join(resume_model, 'model.pdparams')
            self.model.set_state_dict(paddle.load(resume_model))
            logger.info(f'loaded {resume_model}')
        self.model.eval()
        if isinstance(self.model, paddle.DataParallel):
            eval_model = self.model._layers
        else:
            eval_model = self.model

        error_results, losses = [], []
        eos = self.test_dataset.vocab_size - 1
        with paddle.no_grad():
            for batch_id, batch in enumerate(tqdm(self.test_loader())):
                inputs, labels, input_lens, label_lens = batch
                loss_dict = self.model(inputs, input_lens, labels, label_lens)
                losses.append(float(loss_dict['loss']) / self.configs.train_conf.accum_grad)
                outputs = eval_model.get_encoder_out(inputs, input_lens).numpy()
                out_strings = greedy_decoder_batch(outputs, self.test_dataset.vocab_list)
                labels_str = labels_to_string(labels, self.test_dataset.vocab_list, eos=eos)
                for out_string, label in zip(out_strings, labels_str):
                    measure = wer if self.configs.metrics_type == 'wer' else cer
                    error_results.append(measure(out_string, label))
                    if display_result:
                        logger.info(f'recognized: {out_string}')
                        logger.info(f'spoken:     {label}')
        loss = float(sum(losses) / len(losses))
        error_result = float(sum(error_results) / len(error_results))
        self.model.train()
        return loss, error_result

    def export(self, save_model_path='models/', resume_model='models/conformer/best_model/'):
        """Save the model for inference."""
        self.__setup_dataloader()
        self.__setup_model(input_dim=self.test_dataset.feature_dim,
                           vocab_size=self.test_dataset.vocab_size)
        self.model.set_state_dict(paddle.load(os.path.join(resume_model, 'model.pdparams')))
        self.model.eval()
        infer_model_path = os.path.join(self.__model_dir(save_model_path, 'infer'), 'model')
        spec = paddle.static.InputSpec([None, None, self.test_dataset.feature_dim])
        paddle.jit.save(paddle.jit.to_static(self.model, input_spec=[spec]), infer_model_path)
        logger.info("saved for inference to {}".format(infer_model_path))
