"""The one table of settings: what each means, in which unit, and what it may be. docs/settings.md is made from it.

By dataclass: a setting that its dataclass has, and this table has not, fails a test by name. Upper ends are far beyond
what anybody uses: they are there so that a slip of the keyboard is refused at once and not by whatever it breaks.
"""

from nncsl.config.ranges import Range, Setting, above, at_least

_COUNT = 2**31 - 1
_BATCH = 2**20
_PART = Range(0, 1)
_SHARE = Range(0, 1, open_low=True)
_MOMENTUM = Range(0, 1, open_high=True)
_WEIGHT = at_least(0, 1e6)
_RATE = above(0, 1e9)
_REST_RATE = at_least(0, 1e9)
_DECAY = at_least(0, 1000)
_TEMPERATURE = above(0, 10_000)
_EPOCHS = at_least(1, 1_000_000)

_DATA = {
    "dataset": Setting("the images: a data set's name, or your own: folder:PATH, csv:FILE, hf:PATH", path=True),
    "tasks": Setting(
        "how many tasks the classes are divided into, as evenly as they go; or task_sizes as a list",
        at_least(1, 100_000),
    ),
    "task_sizes": Setting(
        "how many classes each task has (default: as even as they go)", at_least(1, _COUNT), "classes"
    ),
    "labels": Setting(
        "how many images have labels: 0.8%, 4/class, one of these for each task, or a file that names them"
    ),
    "data_dir": Setting("the folder that holds the data set", path=True),
    "cache_dir": Setting("where decoded images are kept (default: the user's cache)", path=True),
    "cache_short_side": Setting(
        "short side of decoded images (default: 8/7 of a large view)", at_least(1, 65_535), "pixels"
    ),
    "class_list": Setting("a file that names the class folders to use, one on a line", path=True),
    "class_order": Setting("the classes in the order of the tasks (default: ascending)", at_least(0, _COUNT)),
    "test_fraction": Setting("what part of each class is set aside for testing, where there is no test folder", _PART),
    "verify_data": Setting("compare data files with their published checksums"),
    "skip_unreadable": Setting("leave out images that can't be decoded, instead of stopping"),
    "max_pixels": Setting(
        "of an image file, before it is made smaller; Pillow reads no larger ones", at_least(1, 178_956_970), "pixels"
    ),
    "unlabeled_fraction": Setting("what part of each task's images without labels is used", _SHARE),
    "views": Setting("what a step sees of an image: views.*"),
}
_MEMORY = {
    "memory": Setting("replay memory; 0: none", at_least(0, _COUNT), "images"),
    "memory_selection": Setting(
        "which labeled images are remembered: any, or those nearest to the mean of their class"
    ),
    "unlabeled_memory": Setting("images without labels that are remembered besides", at_least(0, _COUNT), "images"),
    "keep": Setting("bytes kept between tasks and beside the student, e.g. 40MB: memory and bank are chosen to fit"),
}
_TEACHER = {
    "method": Setting("what learns; `nncsl methods` lists them all"),
    "own": Setting("the method's own settings: own.*"),
    "teacher_mode": Setting("who answers for the old network: the feature bank, a copy of the network, nobody"),
    "distillation": Setting("what is distilled: nearest-neighbor assignments, the head's outputs, or features"),
    "bank_views": Setting("stored sets of views of each image", at_least(1, 100_000_000), "sets"),
    "bank_support_views": Setting("the same of labeled images; 0: as many", at_least(0, 100_000_000), "sets"),
    "bank_codec": Setting("how the bank stores a feature; pq needs 256 rows or more"),
    "bank_order": Setting("how steps take stored views: any, or in turns, all of an image before any comes back"),
    "bank_residency": Setting("where the bank's features are while a task is learned"),
    "bank_refresh_epochs": Setting(
        "after how many epochs stored views are replaced; 0: never", at_least(0, 1_000_000), "epochs"
    ),
}
_OBJECTIVE = {
    "tau": Setting("temperature of nearest-neighbor assignments", _TEMPERATURE),
    "sharpening": Setting("exponent's inverse by which targets are sharpened", Range(1e-3, 1)),
    "smoothing": Setting("of labels", Range(0, 1, open_high=True)),
    "lambda_mem": Setting("weight of mean-entropy maximization", _WEIGHT),
    "lambda_lin": Setting("weight of the linear head's gradient in the backbone", _WEIGHT),
    "lambda_nnd": Setting("weight of distillation", _WEIGHT),
    "kd_temperature": Setting("temperature of distilled outputs, for distillation=kd", _TEMPERATURE),
}
_OPTIMIZATION = {
    "epochs": Setting("of each task", _EPOCHS, "epochs"),
    "warmup_epochs": Setting("in which the rate rises, at most all", at_least(0, 1_000_000), "epochs"),
    "unlabeled_batch": Setting("images without label in a step", at_least(1, _BATCH), "images"),
    "labeled_per_class": Setting("labeled images of each class in a step", at_least(1, _BATCH), "images"),
    "labeled_batch": Setting(
        "labeled images in a step of methods that learn from labels alone", at_least(1, _BATCH), "images"
    ),
    "optimizer": Setting("LARS, or plain SGD with momentum"),
    "lr_start": Setting("rate of the first step", _REST_RATE),
    "lr_peak": Setting("rate after the warm-up", _RATE),
    "lr_end": Setting("rate of the last step, reached by a cosine", _REST_RATE),
    "lars_trust": Setting("trust coefficient of LARS", above(0, 1000)),
    "head_lr": Setting("rate of the linear head", _REST_RATE),
    "momentum": Setting("of SGD and LARS", _MOMENTUM),
    "weight_decay": Setting("of all weights but those of BatchNorm and biases", _DECAY),
    "batchnorm": Setting("whether BatchNorm's statistics stay those of the first task"),
    "batchnorm_recalibrate": Setting("take them from the first task's plain images before they are frozen"),
}
_MACHINE = {
    "network": Setting("the network: network.*"),
    "head_outputs": Setting(
        "of the linear head, room for classes that come later; 0: up to the next power of ten", at_least(0, 10_000_000)
    ),
    "precision": Setting("in which the network computes"),
    "memory_budget": Setting(
        "how much memory a run may take, 1MB or more, e.g. 2GB; micro-batches and more are chosen to fit"
    ),
    "micro_batch": Setting(
        "images with activations at once, same gradient; 0: the whole batch", at_least(0, _BATCH), "images"
    ),
    "recompute": Setting("keep block inputs only and compute the rest again, same gradient"),
    "spill": Setting("where the inputs between blocks wait while BatchNorm trains in micro-batches"),
    "prefetch": Setting("prepare the next step while the device computes"),
    "cuda_graph": Setting("replay a step as a CUDA graph"),
    "device": Setting("what computes: auto, cpu, cuda or cuda:N"),
    "ranks_exact": Setting("the same bits for any number of ranks, at the cost of some speed"),
    "ranks_timeout": Setting(
        "without an answer after which other ranks count as lost", at_least(1, 604_800), "seconds"
    ),
    "seed": Setting("decides labels, views, order and initial weights", at_least(0, 2**63 - 1)),
}
_NETWORK = {
    "stem": Setting("first layers: one convolution for small images, or a strided one and pooling"),
    "width": Setting("of the first stage, doubled in each further one", at_least(1, 1_000_000), "channels"),
    "blocks": Setting("of each stage, a number for each", at_least(1, 1000), "blocks"),
    "hidden": Setting("of the projector's hidden layers", at_least(1, 1_000_000), "units"),
    "projection": Setting("length of a projection, which the bank stores", at_least(1, 65_536), "numbers"),
    "stem_padding": Setting("of the small stem's convolution", at_least(0, 64), "pixels"),
    "backbone": Setting(
        "residual (as above), resnet18, resnet34, resnet50, wide_resnet50_2, timm:NAME or module:function"
    ),
    "weights": Setting(
        "a file of the backbone's weights: .safetensors, or what torch loads without running code", path=True
    ),
    "weights_sha256": Setting("of that file; filled in when a run starts"),
    "frozen": Setting("the backbone stays as it is; steps then train from stored features"),
    "backbone_lr": Setting("factor on the backbone's rate", above(0, 1e6)),
}
_VIEWS = {
    "large": Setting("large views: views.large.*"),
    "small": Setting("small views: views.small.*"),
    "flip": Setting("probability of a mirror image", _PART),
    "color": Setting("strength of color changes", Range(0, 2.5)),
    "jitter": Setting("probability of color changes", _PART),
    "solarize": Setting("probability of inverted bright pixels", _PART),
    "equalize": Setting("probability of an equalized histogram", _PART),
    "gray": Setting("probability of a gray image", _PART),
    "blur": Setting("probability of a Gaussian blur", _PART),
    "mean": Setting("subtracted from pixels in [0, 1], one number a channel", Range(-1000, 1000)),
    "std": Setting("by which they are then divided, one number a channel", Range(1e-4, 1000)),
}
_CROP = {
    "count": Setting("views of an image in a step; of large ones always 2", at_least(0, 64), "views"),
    "size": Setting("side of a view", at_least(1, 4096), "pixels"),
    "area": Setting("part of the image's area that a crop takes, least and most", _SHARE),
    "aspect": Setting("width to height of a crop, least and most", Range(0.01, 100)),
}
_OWN_SGD = {
    "lr": Setting("rate of SGD", _RATE),
    "momentum": Setting("of SGD", _MOMENTUM),
    "weight_decay": Setting("of SGD", _DECAY),
    "views": Setting("what its images look like"),
}
_SUPERVISED = _OWN_SGD | {
    "optimizer": Setting("plain SGD, or the preset's optimizer, rates and schedule"),
    "milestones": Setting("parts of a task after each of which the rate falls", _PART),
    "milestone_factor": Setting("by which it is multiplied then", _SHARE),
}
_DERPP = {
    "alpha": Setting("weight of replayed outputs", _WEIGHT),
    "beta": Setting("weight of replayed labels", _WEIGHT),
}
_XDER = {
    "contrast_weight": Setting("weight of the contrast between classes in future outputs", _WEIGHT),
    "contrast_views": Setting("views of each image in it", at_least(2, 64), "views"),
    "contrast_temperature": Setting("its temperature", _TEMPERATURE),
    "contrast_batch": Setting("remembered images in it", at_least(1, _BATCH), "images"),
    "distance_weight": Setting("weight of keeping distances between remembered images", _WEIGHT),
    "constraint_weight": Setting("weight of keeping future outputs below the label's", _WEIGHT),
    "margin": Setting("by how much", at_least(0, 1000)),
    "past_constraint": Setting("keep past probabilities below the present ones as well"),
    "shrink": Setting("size of the largest renewed output that would exceed the label's, as a part of that", _PART),
}
_DSGD = {
    "steps": Setting("of a walk among the remembered images", at_least(1, 1000), "steps"),
    "restart": Setting("how likely each goes back to where the walk began", Range(0, 1, open_high=True)),
}
_NNCSL_PLUS = {
    "images": Setting("that are kept with a guessed label, beside the memory; 0: none", at_least(0, _COUNT), "images"),
    "batch": Setting("of them in a step", at_least(1, _BATCH), "images"),
    "sure": Setting("part of the images taken for a class that may be kept, the surest ones", _SHARE),
    "agree": Setting("the head learns from images of the task whose two large views are taken for the same class"),
}
_LWF = {
    "strength": Setting("weight of distillation; 0: none", _WEIGHT),
    "temperature": Setting("by which the compared outputs are softened", _TEMPERATURE),
}
_OEWC = {
    "strength": Setting("weight of the penalty; 0: plain finetuning", _WEIGHT),
    "fisher_decay": Setting("what a task leaves of the importances before it", _PART),
}
_GDUMB = _OWN_SGD | {
    "epochs": Setting(
        "over the memory, a power of two; 0: about as many steps as other methods have", at_least(0, 2**20), "epochs"
    ),
    # Nearly equal parts of fewer can have one image, which BatchNorm can't train on.
    "batch": Setting("images in a step", at_least(3, _BATCH), "images"),
    "lr_low": Setting("rate at the end of a cosine", _REST_RATE),
    "lr_first": Setting("rate of the first epoch", _REST_RATE),
    "clip": Setting("largest norm of the whole gradient", above(0, 1e9)),
    "cutmix": Setting("part of the batches that are mixed", _PART),
}
_FOSTER = _OWN_SGD | {
    "betas": Setting("how much rare classes are favored in boosting, in tasks 2, 3, ...", Range(0, 1, open_high=True)),
    "compression_beta": Setting("the same in compression", Range(0, 1, open_high=True)),
}
_CCIC = {
    "lr": Setting("rate of Adam", _RATE),
    "unlabeled_batch": Setting("images without label in a step", at_least(1, _BATCH), "images"),
    "views": Setting("of each of them", at_least(1, 64), "views"),
    "neighbors": Setting("remembered images that a triplet is made of", at_least(1, _BATCH)),
    "memory_weight": Setting("weight of the memory's labels", _WEIGHT),
    "unlabeled_weight": Setting("weight of guessed labels", _WEIGHT),
    "triplet_weight": Setting("weight of the triplet loss", _WEIGHT),
    "contrast_weight": Setting("weight of pushing new images away from the memory", _WEIGHT),
    "contrast_until": Setting("part of a task's steps in which that is done", _PART),
    "margin": Setting("of the triplet losses", at_least(0, 1000)),
    "mixup": Setting("parameter of its Beta distribution", above(0, 1000)),
    "softmax_targets": Setting("guesses average probabilities, not outputs"),
    "own_views": Setting("guesses average the views of one image"),
    "softmax_unlabeled": Setting("probabilities, not outputs, shall equal the guesses"),
    "stream_every_step": Setting("the task's labels count in every step"),
}
_ORDISCO = {
    "channels": Setting("of generator and discriminator", at_least(1, 65_536), "channels"),
    "latent": Setting("numbers that an image is made from", at_least(1, 65_536)),
    "d_steps": Setting("of the discriminator for one of the generator", at_least(1, 1000), "steps"),
    "gan_lr": Setting("rate of both", _RATE),
    "gan_betas": Setting("momenta of their Adam", _MOMENTUM),
    "optimizer": Setting("the classifier's: plain SGD, or Adam"),
    "lr": Setting("the classifier's rate (default: 0.1 for SGD, 0.003 for Adam)", _RATE),
    "made_share": Setting("generated images' weight among those that the discriminator is to score low", _PART),
    "anchoring": Setting("weight of the discriminator's old weights", _WEIGHT),
    "anchoring_images": Setting("images that tell which of them matter", at_least(1, _COUNT), "images"),
    "consistency": Setting("weight of agreement with the running average", _WEIGHT),
    "generated": Setting("weight of generated images", _WEIGHT),
    "alone": Setting("part of the run in which the classifier learns alone", _PART),
    "ramp": Setting("part of the run at which the weight of consistency is reached", _SHARE),
    "replay": Setting("parts of the run between which the weight of generated images rises", _PART),
    "decays": Setting("of the classifier's running average, before and after the ramp", _PART),
}

# By the name of the dataclass that has the settings; methods' own include those of what they are derived from.
TABLE: dict[str, dict[str, Setting]] = {
    "Config": _DATA | _MEMORY | _TEACHER | _OBJECTIVE | _OPTIMIZATION | _MACHINE,
    "NetworkConfig": _NETWORK,
    "ViewPolicy": _VIEWS,
    "Crop": _CROP,
    "SupervisedSettings": _SUPERVISED,
    "DERppSettings": _DERPP,
    "XDERSettings": _XDER,
    "DSGDSettings": _DSGD,
    "NNCSLPlusSettings": _NNCSL_PLUS,
    "ICaRLSettings": {"nesterov": Setting("SGD with Nesterov's momentum, which needs own.momentum")},
    "LwFSettings": _LWF,
    "OEWCSettings": _OEWC,
    "GDumbSettings": _GDUMB,
    "FosterSettings": _FOSTER,
    "CCICSettings": _CCIC,
    "ORDisCoSettings": _ORDISCO,
}
