"""Any of timm's networks, an optional dependency; what is inside them is theirs, so they run as one piece."""

from typing import Any

from nncsl.errors import ConfigError, UserError
from nncsl.networks.backbone import Backbone, whole


def build(name: str) -> Backbone:
    """Return timm's network of that name without its classifier, for images of any size if it can."""
    timm = _timm()
    if not timm.is_model(name):
        close = ", ".join(timm.list_models(f"*{name.split('_')[0]}*")[:5])
        raise ConfigError(f"network.backbone='timm:{name}': timm {timm.__version__} has no such network; e.g. {close}")
    options: dict[str, Any] = {"pretrained": False, "num_classes": 0}
    try:  # large and small views of one image have different sizes, which a vision transformer has to be told
        module = timm.create_model(name, dynamic_img_size=True, dynamic_img_pad=True, **options)
    except TypeError:
        module = timm.create_model(name, **options)
    return whole(module, module.num_features)


def _timm() -> Any:
    import nncsl.data.torchvision_compat  # noqa: F401 - timm imports torchvision

    try:
        import timm
    except ImportError as error:
        raise UserError(f'network.backbone=timm:NAME needs timm ({error}): pip install "nncsl[backbones]"') from error
    return timm
