"""ORDisCo's own settings. The numbers are those of Triple-GAN's second version, its steps as parts of a run."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ORDisCoSettings:
    """The players' sizes and rates, and what weighs how much, when.

    optimizer, lr: the classifier's; by default .1 for plain SGD (our choice) and .003, ramped up, for Adam.
    made_share: the generated images' weight among those that the discriminator is to score low.
    anchoring: of the discriminator's old weights (our choice); at most anchoring_images of a task's unlabeled images
    tell which of them matter, as each needs a backward pass of its own.
    alone, ramp, replay: parts of the whole run, over all tasks (our choice; there, steps of 240,000). The classifier
    learns alone at first; the weight ``consistency`` is reached at ramp, ``generated`` between the two in replay.
    decays: of the classifier's running average, before and after ramp.
    """

    channels: int = 256
    latent: int = 256
    d_steps: int = 5
    gan_lr: float = 1e-4
    gan_betas: tuple[float, float] = (0.0, 0.99)
    optimizer: Literal["plain", "adam"] = "plain"
    lr: float | None = None
    made_share: float = 0.5
    anchoring: float = 0.01
    anchoring_images: int = 256
    consistency: float = 50.0
    generated: float = 3.0
    alone: float = 20 / 240
    ramp: float = 40 / 240
    replay: tuple[float, float] = (50 / 240, 70 / 240)
    decays: tuple[float, float] = (0.99, 0.999)

    def __post_init__(self) -> None:
        if self.replay[0] >= self.replay[1]:
            raise ValueError(f"replay={self.replay}: expected two rising ones")
