"""What a step does with gradients: compute, unscale, clip, agree, apply or skip."""
