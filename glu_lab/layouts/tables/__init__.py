"""The table of layouts, one module a family; pure data."""

from glu_lab.layouts.layout import Layout
from glu_lab.layouts.tables.experts import EXPERT_LAYOUTS
from glu_lab.layouts.tables.gguf import GGUF_LAYOUTS
from glu_lab.layouts.tables.hugging_face import HUGGING_FACE_LAYOUTS
from glu_lab.layouts.tables.jax_projects import JAX_LAYOUTS
from glu_lab.layouts.tables.megatron import MEGATRON_LAYOUTS
from glu_lab.layouts.tables.models import MODEL_LAYOUTS
from glu_lab.layouts.tables.torch_projects import TORCH_LAYOUTS

#: In the order in which they are listed.
TABLES: tuple[tuple[Layout, ...], ...] = (
    JAX_LAYOUTS,
    HUGGING_FACE_LAYOUTS,
    EXPERT_LAYOUTS,
    MODEL_LAYOUTS,
    TORCH_LAYOUTS,
    MEGATRON_LAYOUTS,
    GGUF_LAYOUTS,
)
