import hashlib
import os
import pickle
import re

import numpy as np
import pytest
import torch

from zoedge.tasks import IGNORED, LOSSES, cifar10, cifar10_files, digits, sorting


def test_losses_are_the_paper_s_convention():
    outputs = torch.tensor([[0.2, 0.5, -0.1], [1.0, 0.0, 0.0]])
    targets = torch.tensor([1, 0])
    assert float(LOSSES["squared"](outputs, targets)) == pytest.approx(0.5 * (0.04 + 0.25 + 0.01) / 2)
    expected = torch.nn.functional.cross_entropy(outputs, targets)
    assert float(LOSSES["cross-entropy"](outputs, targets)) == pytest.approx(float(expected))


@pytest.mark.parametrize("loss", LOSSES.values())
def test_ignored_positions_do_not_count(loss):
    outputs = torch.randn(3, 5, 4)
    targets = torch.randint(4, (3, 5))
    targets[:, :2] = IGNORED
    assert float(loss(outputs, targets)) == pytest.approx(float(loss(outputs[:, 2:], targets[:, 2:])), rel=1e-6)


def test_sorting():
    task = sorting(examples=50, numbers=4, length=8, seed=3)
    assert task.inputs.shape == task.targets.shape == (50, 15)
    given = task.inputs[:, :8]
    answers = task.targets[:, 7:]
    assert torch.equal(given.sort(1).values, answers)
    assert torch.equal(task.inputs[:, 8:], answers[:, :-1])
    assert (task.targets[:, :7] == IGNORED).all()
    assert torch.equal(sorting(50, seed=3).inputs, task.inputs)
    assert not torch.equal(sorting(50, seed=4).inputs, task.inputs)
    perfect = torch.nn.functional.one_hot(task.targets.clamp(min=0), 4).float()
    assert float(LOSSES["squared"](perfect, task.targets)) == 0


def test_digits():
    task = digits(classes=5, per_class=20)
    assert task.inputs.shape == (100, 1, 8, 8)
    assert torch.equal(task.targets.bincount(), torch.full((5,), 20))
    small = digits(classes=5, per_class=20, image_size=4)
    torch.testing.assert_close(small.inputs.mean((1, 2, 3)), task.inputs.mean((1, 2, 3)), rtol=1e-4, atol=1e-5)
    chosen = digits(classes=5, per_class=20, seed=1)
    assert torch.equal(chosen.targets.bincount(), torch.full((5,), 20))
    assert torch.equal(chosen.inputs, digits(classes=5, per_class=20, seed=1).inputs)
    assert not torch.equal(chosen.inputs, task.inputs)
    for settings, message in (
        ({"seed": -1}, "seed must be at least 0"),
        ({"classes": 11}, "at most 10"),
        ({"classes": 1}, "at least 2"),
        ({"per_class": 500}, "only 174 examples"),
        ({"image_size": 3}, "must divide 8"),
    ):
        with pytest.raises(ValueError, match=message):
            digits(**settings)


# ---------------------------------------------------------------------- CIFAR-10, without a network


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Arrays of the right shape whose checksums the module is made to expect; nothing can be reached."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (50, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(50, dtype=np.uint8) % 10
    monkeypatch.setattr(cifar10_files, "_IMAGES", hashlib.sha256(images.tobytes()).hexdigest())
    monkeypatch.setattr(cifar10_files, "_LABELS", hashlib.sha256(labels.tobytes()).hexdigest())
    monkeypatch.setattr(cifar10_files, "_SITE", f"file://{tmp_path}/nowhere.tar.gz")
    monkeypatch.setenv("ZOEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return images, labels


def write_batches(folder, images, labels, binary):
    folder.mkdir(parents=True)
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    for i in range(5):
        part = slice(10 * i, 10 * i + 10)
        name = folder / f"data_batch_{i + 1}"
        if binary:
            np.concatenate([labels[part, None], planes[part]], 1).tofile(f"{name}.bin")
        else:
            name.write_bytes(pickle.dumps({b"data": planes[part], b"labels": labels[part].tolist()}, protocol=2))


@pytest.mark.parametrize("binary", [False, True])
def test_cifar10_from_a_folder(fake, tmp_path, binary):
    inside = tmp_path / "data" / f"cifar-10-batches-{'bin' if binary else 'py'}"
    write_batches(inside, *fake, binary=binary)
    for folder in (inside, tmp_path / "data"):
        images, labels = cifar10_files.training_images(folder)
        assert np.array_equal(images, fake[0])
        assert np.array_equal(labels, fake[1])
    task = cifar10(classes=3, per_class=5, image_size=16, folder=inside)
    assert task.inputs.shape == (15, 3, 16, 16)
    assert torch.equal(task.targets.bincount(), torch.full((3,), 5))
    mean = fake[0].mean((0, 1, 2)) / 255
    deviation = fake[0].std((0, 1, 2)) / 255
    first = (fake[0][0] / 255 - mean) / deviation
    expected = first.reshape(16, 2, 16, 2, 3).mean((1, 3)).transpose(2, 0, 1)
    np.testing.assert_allclose(task.inputs[0], expected, atol=1e-5)


def test_cifar10_from_its_site_goes_to_the_cache(fake, tmp_path, monkeypatch):
    import tarfile

    write_batches(tmp_path / "cifar-10-batches-py", *fake, binary=False)
    archive = tmp_path / "cifar.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
    monkeypatch.setattr(cifar10_files, "_SITE", f"file://{archive}")
    monkeypatch.setattr(cifar10_files, "_SITE_MD5", "wrong")
    with pytest.raises(OSError, match="md5 differs from the published one"):
        cifar10_files.training_images()
    monkeypatch.setattr(cifar10_files, "_SITE_MD5", hashlib.md5(archive.read_bytes()).hexdigest())
    images, _ = cifar10_files.training_images()
    archive.unlink()
    assert np.array_equal(cifar10_files.training_images()[0], images)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["cifar10.npz"]


def test_a_damaged_cache_is_not_trusted(fake, tmp_path):
    cache = tmp_path / "cache" / "cifar10.npz"
    cache.parent.mkdir()
    np.savez(cache, images=fake[0][:, ::-1], labels=fake[1])
    with pytest.raises(OSError, match=re.compile("the cache: .*checksum differs", re.DOTALL)):
        cifar10_files.training_images()
    np.savez(cache, images=fake[0], labels=fake[1])
    whole = cache.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content in (b"not a file of arrays", whole[: len(whole) // 2], bytes(flipped)):
        cache.write_bytes(content)
        with pytest.raises(OSError, match="could not be had"):
            cifar10_files.training_images()


def test_without_any_source_the_message_says_what_to_do(fake):
    with pytest.raises(OSError, match="could not be had") as error:
        cifar10()
    for part in ("the cache: there is no", "its own site:", "npm: npm is not installed", "--data.folder", "'digits'"):
        assert part in str(error.value)


def test_folders_that_do_not_hold_it(fake, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        cifar10(folder=tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="neither the python batches"):
        cifar10(folder=tmp_path)
    write_batches(tmp_path / "other", fake[0][:, ::-1], fake[1], binary=True)
    with pytest.raises(ValueError, match="are not the training images of CIFAR-10"):
        cifar10(folder=tmp_path / "other")
    evil = tmp_path / "evil"
    evil.mkdir()
    for i in range(1, 6):
        (evil / f"data_batch_{i}").write_bytes(pickle.dumps(os.getcwd))
    with pytest.raises(ValueError, match="holds arrays only, this file wants"):
        cifar10(folder=evil)


def test_the_real_cifar10():
    """Downloads it, or takes it from the cache; what is checked are the published bytes."""
    task = cifar10()
    assert task.inputs.shape == (1000, 3, 32, 32)
    assert torch.equal(task.targets.bincount(), torch.full((4,), 250))
    whole = cifar10(classes=10, per_class=5000)
    torch.testing.assert_close(whole.inputs.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-4)
    torch.testing.assert_close(whole.inputs.std((0, 2, 3)), torch.ones(3), rtol=0, atol=1e-4)
