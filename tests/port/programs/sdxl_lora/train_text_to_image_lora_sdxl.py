"""Fine-tuning script for Stable Diffusion XL for text2image with support for LoRA."""

import gc
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import paddle
import paddle.nn as nn
import paddle.nn.functional as F
from paddle.optimizer import Adam, AdamW, Momentum
from paddlenlp.transformers import AutoTokenizer, CLIPTextModel, CLIPTextModelWithProjection
from ppdiffusers import AutoencoderKL, DDPMScheduler, StableDiffusionXLPipeline, UNet2DConditionModel
from ppdiffusers.accelerate import Accelerator
from ppdiffusers.accelerate.utils import ProjectConfiguration
from ppdiffusers.optimization import get_scheduler
from ppdiffusers.training_utils import set_seed
from tqdm.auto import tqdm
from visualdl import LogWriter

from sdxl.arguments import parse_args
from sdxl.data import build_train_dataloader
from sdxl.lora import add_lora, compute_snr, lora_state_dict, updates_per_epoch

logger = logging.getLogger(__name__)


def save_model_card(repo_id, images=None, base_model=str, dataset_name=str, repo_folder=None):
    img_str = ""
    for i, image in enumerate(images or []):
        image.save(os.path.join(repo_folder, f"image_{i}.png"))
        img_str += f"![img_{i}](./image_{i}.png)\n"
    card = f"""
# LoRA text2image fine-tuning - {repo_id}

These are LoRA adaption weights for {base_model}. The weights were fine-tuned on the {dataset_name}
dataset. You can find some example images in the following.

{img_str}
"""
    with open(os.path.join(repo_folder, "README.md"), "w") as f:
        f.write(card)


def import_text_encoders(args):
    name = args.pretrained_model_name_or_path
    one = CLIPTextModel.from_pretrained(name, subfolder="text_encoder")
    two = CLIPTextModelWithProjection.from_pretrained(name, subfolder="text_encoder_2")
    return one, two


def encode_prompt(text_encoders, text_input_ids_list):
    prompt_embeds_list = []
    for text_encoder, text_input_ids in zip(text_encoders, text_input_ids_list):
        prompt_embeds = text_encoder(text_input_ids, output_hidden_states=True)
        # We are only interested in the pooled output of the final text encoder
        pooled_prompt_embeds = prompt_embeds[0]
        prompt_embeds = prompt_embeds.hidden_states[-2]
        bs_embed, seq_len, _ = prompt_embeds.shape
        prompt_embeds_list.append(prompt_embeds.reshape([bs_embed, seq_len, -1]))
    prompt_embeds = paddle.concat(prompt_embeds_list, axis=-1)
    return prompt_embeds, pooled_prompt_embeds.reshape([bs_embed, -1])


def compute_time_ids(args, original_size, crops_coords_top_left, dtype):
    target_size = (args.resolution, args.resolution)
    add_time_ids = list(original_size + crops_coords_top_left + target_size)
    return paddle.to_tensor([add_time_ids]).astype(dtype)


def find_checkpoint(args):
    """The folder to go on from, and its step."""
    if args.resume_from_checkpoint != "latest":
        path = os.path.basename(args.resume_from_checkpoint)
    else:
        dirs = [d for d in os.listdir(args.output_dir) if d.startswith("checkpoint")]
        dirs = sorted(dirs, key=lambda x: int(x.split("-")[1]))
        path = dirs[-1] if len(dirs) > 0 else None
    if path is None:
        logger.info("Checkpoint does not exist. Starting a new training run.")
        args.resume_from_checkpoint = None
        return None, 0
    return os.path.join(args.output_dir, path), int(path.split("-")[1])


def remove_old_checkpoints(args):
    checkpoints = [d for d in os.listdir(args.output_dir) if d.startswith("checkpoint")]
    checkpoints = sorted(checkpoints, key=lambda x: int(x.split("-")[1]))
    if len(checkpoints) < args.checkpoints_total_limit:
        return
    num_to_remove = len(checkpoints) - args.checkpoints_total_limit + 1
    for removing_checkpoint in checkpoints[:num_to_remove]:
        logger.info("removing checkpoint %s", removing_checkpoint)
        shutil.rmtree(os.path.join(args.output_dir, removing_checkpoint))


def log_validation(args, pipeline, writer, epoch, is_final=False):
    generator = paddle.Generator().manual_seed(args.seed) if args.seed else None
    images = [
        pipeline(args.validation_prompt, num_inference_steps=30, generator=generator).images[0]
        for _ in range(args.num_validation_images)
    ]
    stage = "test" if is_final else "validation"
    for i, image in enumerate(images):
        writer.add_image(f"{stage}_{i}", np.asarray(image), epoch, dataformats="HWC")
    return images


class EMAModel:
    """The average of what is trained, over the updates."""

    def __init__(self, parameters, decay=0.9999):
        self.decay = decay
        self.shadow = [p.clone().detach() for p in parameters]
        self.stored = None

    @paddle.no_grad()
    def step(self, parameters):
        for kept, p in zip(self.shadow, parameters):
            kept.set_value(self.decay * kept + (1 - self.decay) * p.astype(kept.dtype))

    def store(self, parameters):
        self.stored = [p.clone() for p in parameters]

    def copy_to(self, parameters):
        for kept, p in zip(self.shadow, parameters):
            p.set_value(kept.astype(p.dtype))

    def restore(self, parameters):
        if self.stored is None:
            raise RuntimeError("This EMAModel has no stored weights to `restore()`")
        for kept, p in zip(self.stored, parameters):
            p.set_value(kept)
        self.stored = None


def main(args):
    logging_dir = Path(args.output_dir, args.logging_dir)
    accelerator_project_config = ProjectConfiguration(
        project_dir=args.output_dir, logging_dir=logging_dir
    )
    accelerator = Accelerator(
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        log_with=args.report_to,
        project_config=accelerator_project_config,
    )
    is_main_process = accelerator.is_main_process
    num_processes = accelerator.num_processes

    # Make one log on every process with the configuration for debugging.
    logging.basicConfig(
        format="%(asctime)s - %(levelname)s - %(name)s - %(message)s",
        datefmt="%m/%d/%Y %H:%M:%S",
        level=logging.INFO,
    )
    if accelerator.is_local_main_process:
        logger.setLevel(logging.INFO)
    else:
        logger.setLevel(logging.ERROR)
    if args.seed is not None:
        set_seed(args.seed)

    # Handle the repository creation
    repo_id = None
    if is_main_process:
        if args.output_dir is not None:
            os.makedirs(args.output_dir, exist_ok=True)
        if args.push_to_hub:
            repo_id = args.hub_model_id or Path(args.output_dir).name
    writer = LogWriter(str(logging_dir))

    # Load the tokenizers, scheduler and models.
    name = args.pretrained_model_name_or_path
    tokenizer_one = AutoTokenizer.from_pretrained(name, subfolder="tokenizer", use_fast=False)
    tokenizer_two = AutoTokenizer.from_pretrained(name, subfolder="tokenizer_2", use_fast=False)
    noise_scheduler = DDPMScheduler.from_pretrained(name, subfolder="scheduler")
    text_encoder_one, text_encoder_two = import_text_encoders(args)
    vae_path = args.pretrained_vae_model_name_or_path or name
    vae_subfolder = "vae" if args.pretrained_vae_model_name_or_path is None else None
    vae = AutoencoderKL.from_pretrained(vae_path, subfolder=vae_subfolder)
    unet = UNet2DConditionModel.from_pretrained(name, subfolder="unet")

    # We only train the additional adapter LoRA layers.
    for frozen in (vae, text_encoder_one, text_encoder_two):
        for parameter in frozen.parameters():
            parameter.stop_gradient = True
        frozen.eval()
    unet_lora_parameters = add_lora(unet, args.rank)

    # The text encoder comes from transformers, so we can add LoRA layers to it, too.
    text_lora_parameters_one, text_lora_parameters_two = [], []
    if args.train_text_encoder:
        text_lora_parameters_one = add_lora(text_encoder_one, args.rank)
        text_lora_parameters_two = add_lora(text_encoder_two, args.rank)
    if args.gradient_checkpointing:
        unet.enable_gradient_checkpointing()
        if args.train_text_encoder:
            text_encoder_one.gradient_checkpointing_enable()
            text_encoder_two.gradient_checkpointing_enable()
    ema_unet = EMAModel(unet_lora_parameters) if args.use_ema else None

    # create custom saving & loading hooks so that `accelerator.save_state(...)` serializes nicely
    def save_model_hook(models, weights, output_dir):
        if is_main_process:
            for model in models:
                if isinstance(model, UNet2DConditionModel):
                    paddle.save(lora_state_dict(model), os.path.join(output_dir, "unet.pdparams"))
                elif isinstance(model, CLIPTextModel):
                    paddle.save(lora_state_dict(model), os.path.join(output_dir, "one.pdparams"))
                elif isinstance(model, CLIPTextModelWithProjection):
                    paddle.save(lora_state_dict(model), os.path.join(output_dir, "two.pdparams"))
                else:
                    raise ValueError(f"unexpected save model: {model.__class__}")
                # make sure to pop weight so that corresponding model is not saved again
                if weights:
                    weights.pop()

    def load_model_hook(models, input_dir):
        while len(models) > 0:
            model = models.pop()
            if isinstance(model, UNet2DConditionModel):
                name_of_file = "unet.pdparams"
            elif isinstance(model, CLIPTextModel):
                name_of_file = "one.pdparams"
            elif isinstance(model, CLIPTextModelWithProjection):
                name_of_file = "two.pdparams"
            else:
                raise ValueError(f"unexpected load model: {model.__class__}")
            model.set_state_dict(paddle.load(os.path.join(input_dir, name_of_file)))

    accelerator.register_save_state_pre_hook(save_model_hook)
    accelerator.register_load_state_pre_hook(load_model_hook)

    if args.scale_lr:
        args.learning_rate = (
            args.learning_rate
            * args.gradient_accumulation_steps
            * args.train_batch_size
            * num_processes
        )

    train_dataloader = build_train_dataloader(args, [tokenizer_one, tokenizer_two])

    # Scheduler and math around the number of training steps.
    overrode_max_train_steps = False
    num_update_steps_per_epoch = updates_per_epoch(
        len(train_dataloader), args.gradient_accumulation_steps
    )
    if args.max_train_steps is None:
        args.max_train_steps = args.num_train_epochs * num_update_steps_per_epoch
        overrode_max_train_steps = True
    lr_scheduler = get_scheduler(
        args.lr_scheduler,
        learning_rate=args.learning_rate,
        num_warmup_steps=args.lr_warmup_steps,
        num_training_steps=args.max_train_steps,
    )

    # Optimizer creation
    if args.optimizer.lower() == "adamw":
        optimizer_class = AdamW
    elif args.optimizer.lower() == "adam":
        optimizer_class = Adam
    elif args.optimizer.lower() == "momentum":
        optimizer_class = Momentum
    else:
        raise ValueError(f"unsupported optimizer: {args.optimizer}")
    params_to_optimize = unet_lora_parameters
    if args.train_text_encoder:
        params_to_optimize = (
            unet_lora_parameters + text_lora_parameters_one + text_lora_parameters_two
        )
    grad_clip = nn.ClipGradByGlobalNorm(args.max_grad_norm) if args.max_grad_norm > 0 else None
    if args.optimizer.lower() == "momentum":
        optimizer = optimizer_class(
            parameters=params_to_optimize,
            learning_rate=lr_scheduler,
            momentum=0.9,
            weight_decay=args.adam_weight_decay,
            grad_clip=grad_clip,
        )
    else:
        optimizer = optimizer_class(
            parameters=params_to_optimize,
            learning_rate=lr_scheduler,
            beta1=args.adam_beta1,
            beta2=args.adam_beta2,
            weight_decay=args.adam_weight_decay,
            epsilon=args.adam_epsilon,
            grad_clip=grad_clip,
        )

    # Prepare everything with our `accelerator`.
    if args.train_text_encoder:
        unet, text_encoder_one, text_encoder_two, optimizer, train_dataloader, lr_scheduler = (
            accelerator.prepare(
                unet, text_encoder_one, text_encoder_two, optimizer, train_dataloader, lr_scheduler
            )
        )
    else:
        unet, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
            unet, optimizer, train_dataloader, lr_scheduler
        )

    # We need to recalculate our total training steps as the size of the dataloader may have changed.
    num_update_steps_per_epoch = updates_per_epoch(
        len(train_dataloader), args.gradient_accumulation_steps
    )
    if overrode_max_train_steps:
        args.max_train_steps = args.num_train_epochs * num_update_steps_per_epoch
    args.num_train_epochs = updates_per_epoch(args.max_train_steps, num_update_steps_per_epoch)

    # We need to initialize the trackers we use, and also store our configuration.
    if is_main_process:
        accelerator.init_trackers("text2image-fine-tune", config=vars(args))

    # Train!
    total_batch_size = (
        args.train_batch_size * num_processes * args.gradient_accumulation_steps
    )
    logger.info("***** Running training *****")
    logger.info("  Num batches per epoch = %d", len(train_dataloader))
    logger.info("  Num Epochs = %d", args.num_train_epochs)
    logger.info("  Instantaneous batch size per device = %d", args.train_batch_size)
    logger.info("  Total train batch size (w. parallel, distributed) = %d", total_batch_size)
    logger.info("  Total optimization steps = %d", args.max_train_steps)
    global_step = 0
    first_epoch = 0
    resume_step = 0

    # Potentially load in the weights and states from a previous save
    if args.resume_from_checkpoint:
        path, global_step = find_checkpoint(args)
        if path is not None:
            unet.set_state_dict(paddle.load(os.path.join(path, "lora.pdparams")))
            optimizer.set_state_dict(paddle.load(os.path.join(path, "optimizer.pdopt")))
            first_epoch = global_step // num_update_steps_per_epoch
            resume_step = global_step % num_update_steps_per_epoch

    # Only show the progress bar once on each machine.
    progress_bar = tqdm(range(global_step, args.max_train_steps), disable=not is_main_process)
    progress_bar.set_description("Steps")

    # add amp
    scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
    unet = paddle.amp.decorate(models=unet, level="O2")

    for epoch in range(first_epoch, args.num_train_epochs):
        unet.train()
        train_loss = 0.0
        for step, batch in enumerate(train_dataloader):
            # Skip steps until we reach the resumed step
            if args.resume_from_checkpoint and epoch == first_epoch and step < resume_step:
                progress_bar.update(1)
                continue

            with accelerator.accumulate(unet):
                # Convert images to latent space
                with paddle.no_grad():
                    latents = vae.encode(batch["pixel_values"]).latent_dist.sample()
                    latents = latents * vae.config.scaling_factor

                # Sample noise that we'll add to the latents
                noise = paddle.randn(latents.shape, dtype=latents.dtype)
                if args.noise_offset:
                    offset = paddle.randn([latents.shape[0], latents.shape[1], 1, 1], latents.dtype)
                    noise = noise + args.noise_offset * offset

                # Sample a random timestep for each image
                bsz = latents.shape[0]
                timesteps = paddle.randint(0, noise_scheduler.config.num_train_timesteps, [bsz])

                # Add noise to the latents according to the noise magnitude at each timestep
                # (this is the forward diffusion process)
                noisy_latents = noise_scheduler.add_noise(latents, noise, timesteps)

                # time ids, and the text embedding for conditioning
                add_time_ids = paddle.concat(
                    [
                        compute_time_ids(args, s, c, latents.dtype)
                        for s, c in zip(batch["original_sizes"], batch["crop_top_lefts"])
                    ]
                )
                with paddle.no_grad():
                    prompt_embeds, pooled_prompt_embeds = encode_prompt(
                        [text_encoder_one, text_encoder_two],
                        [batch["input_ids_one"], batch["input_ids_two"]],
                    )
                unet_added_conditions = {"time_ids": add_time_ids, "text_embeds": pooled_prompt_embeds}

                # Predict the noise residual
                with paddle.amp.auto_cast(
                    enable=True, custom_white_list=None, custom_black_list=None, level="O2"
                ):
                    model_pred = unet(
                        noisy_latents,
                        timesteps,
                        prompt_embeds,
                        added_cond_kwargs=unet_added_conditions,
                    ).sample

                # Get the target for loss depending on the prediction type
                if args.prediction_type is not None:
                    noise_scheduler.register_to_config(prediction_type=args.prediction_type)
                if noise_scheduler.config.prediction_type == "epsilon":
                    target = noise
                elif noise_scheduler.config.prediction_type == "v_prediction":
                    target = noise_scheduler.get_velocity(latents, noise, timesteps)
                else:
                    raise ValueError(
                        f"Unknown prediction type {noise_scheduler.config.prediction_type}"
                    )

                if args.snr_gamma is None:
                    loss = F.mse_loss(model_pred.astype("float32"), target.astype("float32"))
                else:
                    # Loss-weights of section 3.4 of the paper on min-SNR weighting.
                    snr = compute_snr(noise_scheduler, timesteps)
                    base_weight = (
                        paddle.stack([snr, args.snr_gamma * paddle.ones_like(timesteps)], 1).min(1) / snr
                    )
                    if noise_scheduler.config.prediction_type == "v_prediction":
                        mse_loss_weights = base_weight + 1
                    else:
                        mse_loss_weights = base_weight
                    loss = F.mse_loss(
                        model_pred.astype("float32"), target.astype("float32"), reduction="none"
                    )
                    loss = loss.mean(axis=list(range(1, len(loss.shape)))) * mse_loss_weights
                    loss = loss.mean()
                # Gather the losses across all processes for logging (if we use distributed training).
                avg_loss = accelerator.gather(loss.tile([args.train_batch_size])).mean()
                train_loss += float(avg_loss) / args.gradient_accumulation_steps

                # Backpropagate
                scaled = scaler.scale(loss)
                scaled.backward()
                scaler.step(optimizer)
                scaler.update()

                optimizer.step()
                lr_scheduler.step()
                optimizer.clear_grad()

            # Checks if the accelerator has performed an optimization step behind the scenes
            if accelerator.sync_gradients:
                if args.use_ema:
                    ema_unet.step(unet_lora_parameters)
                progress_bar.update(1)
                global_step += 1
                accelerator.log({"train_loss": train_loss}, step=global_step)
                train_loss = 0.0
            if is_main_process:
                writer.add_scalar("train/loss", float(loss), global_step)
                writer.add_scalar("train/lr", optimizer.get_lr(), global_step)
                if global_step % args.checkpointing_steps == 0:
                    # _before_ saving state, check if this save would set us over the limit
                    if args.checkpoints_total_limit is not None:
                        remove_old_checkpoints(args)
                    save_path = Path(args.output_dir) / f"checkpoint-{global_step}"
                    save_path.mkdir(parents=True, exist_ok=True)
                    paddle.save(lora_state_dict(unet), str(save_path / "lora.pdparams"))
                    paddle.save(optimizer.state_dict(), str(save_path / "optimizer.pdopt"))
                    logger.info("Saved state to %s", save_path)

            logs = {"step_loss": float(loss), "lr": optimizer.get_lr()}
            progress_bar.set_postfix(**logs)
            if global_step >= args.max_train_steps:
                break

        if is_main_process and args.validation_prompt is not None:
            if epoch % args.validation_epochs == 0:
                logger.info("Running validation with prompt: %s", args.validation_prompt)
                if args.use_ema:
                    # Store the UNet parameters temporarily and load the EMA parameters.
                    ema_unet.store(unet_lora_parameters)
                    ema_unet.copy_to(unet_lora_parameters)
                # create pipeline
                pipeline = StableDiffusionXLPipeline.from_pretrained(
                    name,
                    vae=vae,
                    text_encoder=accelerator.unwrap_model(text_encoder_one),
                    text_encoder_2=accelerator.unwrap_model(text_encoder_two),
                    unet=accelerator.unwrap_model(unet),
                    paddle_dtype=paddle.float16,
                )
                pipeline.set_progress_bar_config(disable=True)
                with paddle.amp.auto_cast(level="O1"):
                    log_validation(args, pipeline, writer, epoch)
                if args.use_ema:
                    # Switch back to the original UNet parameters.
                    ema_unet.restore(unet_lora_parameters)
                del pipeline
                paddle.device.cuda.empty_cache()

    # Save the lora layers
    accelerator.wait_for_everyone()
    if is_main_process:
        unet = accelerator.unwrap_model(unet)
        if args.use_ema:
            ema_unet.copy_to(unet_lora_parameters)
        if args.train_text_encoder:
            for part, encoder in (("one", text_encoder_one), ("two", text_encoder_two)):
                state = lora_state_dict(accelerator.unwrap_model(encoder))
                paddle.save(state, os.path.join(args.output_dir, f"{part}.pdparams"))
        paddle.save(lora_state_dict(unet), os.path.join(args.output_dir, "lora.pdparams"))
        del unet, text_encoder_one, text_encoder_two, optimizer
        gc.collect()
        pipeline = StableDiffusionXLPipeline.from_pretrained(
            name, vae=vae, paddle_dtype=paddle.float16
        )
        pipeline.load_lora_weights(args.output_dir)
        images = []
        if args.validation_prompt and args.num_validation_images > 0:
            images = log_validation(args, pipeline, writer, args.num_train_epochs, is_final=True)
        save_model_card(
            Path(args.output_dir).name,
            images=images,
            base_model=name,
            dataset_name=args.dataset_name,
            repo_folder=args.output_dir,
        )
        if args.push_to_hub:
            logger.info("to be uploaded as %s", repo_id)
    writer.close()
    accelerator.end_training()


if __name__ == "__main__":
    main(parse_args())
