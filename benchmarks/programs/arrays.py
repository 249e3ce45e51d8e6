"""Programs of arrays: linear algebra, fits, images, statistics and files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, wait


def svd(_: Client) -> Any:
    """Approximate the largest singular values."""
    return da.linalg.svd_compressed(_draw((8000, 3000), 1000), k=10, seed=1)[1].compute()


def fft(_: Client) -> Any:
    """Transform along both axes, with a rechunk in between."""
    along = da.fft.fft(_draw((4000, 4000), (500, 4000)), axis=1).rechunk((4000, 500))
    return float(abs(da.fft.fft(along, axis=0)).sum().compute())


def order_statistics(_: Client) -> Any:
    """Find the largest values, then percentiles."""
    values = _draw(30_000_000, 1_000_000)
    return da.topk(values, 10).compute(), da.percentile(values, [5, 50]).compute()


def least_squares(_: Client) -> Any:
    """Solve an overdetermined system."""
    matrix = _draw((400_000, 40), (20_000, 40))
    return da.linalg.lstsq(matrix, matrix.sum(axis=1))[0].compute()


def logistic(_: Client) -> Any:
    """Fit a logistic regression by steps along the gradient, on persisted data."""
    points = _draw((600_000, 30), (30_000, 30)).persist()
    labels = (points.sum(axis=1) > 15).astype(float).persist()
    weights = np.zeros(30)
    for _step in range(15):
        expected = 1 / (1 + da.exp(-points.dot(weights)))
        weights = weights - 1e-6 * points.T.dot(expected - labels).compute()
    return weights


def kmeans(_: Client) -> Any:
    """Find clusters of persisted points in rounds."""
    points = _draw((800_000, 8), (40_000, 8)).persist()
    centres = np.random.default_rng(0).random((6, 8))
    for _round in range(8):
        nearest = ((points[:, None, :] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        members = [nearest == label for label in range(len(centres))]
        means = [(points * own[:, None]).sum(axis=0) / own.sum() for own in members]
        centres = np.array(dask.compute(*means))
    return centres


def smooth_image(_: Client) -> Any:
    """Smooth an image, and count the pixels above its mean."""
    from scipy import ndimage

    image = _draw((6000, 6000), 1000)
    smooth = image.map_overlap(ndimage.gaussian_filter, depth=12, boundary="reflect", sigma=3)
    return int((smooth > smooth.mean()).sum().compute())


def zarr(_: Client, scratch: Path) -> Any:
    """Write an array to files, and reduce its transpose that is read from them."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        _draw((5000, 5000), 1000).to_zarr(folder)
        turned = da.from_zarr(folder).T.rechunk((500, 5000))
        return float(turned.std(axis=1).max().compute())


def sliding_window(_: Client) -> Any:
    """Average over windows that cross chunks."""
    windows = da.lib.stride_tricks.sliding_window_view(_draw((3000, 3000), 500), 5, axis=0)
    return float(windows.mean(axis=-1).max().compute())


def persisted(_: Client) -> Any:
    """Compute five results of persisted data, one after another."""
    x = _draw((8000, 8000), 1000).persist()
    wait(x)
    results = (
        x.sum(),
        x.std(axis=0).max(),
        (x @ x[:, :100]).sum(),
        (x + x.T).mean(),
        x[::7, ::3].sum(),
    )
    return [float(result.compute()) for result in results]


def histograms(_: Client) -> Any:
    """Count whole numbers in three ways."""
    x = da.random.default_rng(1).integers(0, 5000, 30_000_000, chunks=1_000_000)
    return (
        da.unique(x).compute(),
        da.bincount(x, minlength=5000).compute(),
        da.histogram(x, bins=50, range=(0, 5000))[0].compute(),
    )


def matrix_power(_: Client) -> Any:
    """Multiply a matrix with itself twice."""
    x = _draw((3000, 3000), 750)
    return float((x @ x @ x).trace().compute())


def correlation(_: Client) -> Any:
    """Correlate many long series."""
    return float(da.corrcoef(_draw((200, 600_000), (200, 30_000))).sum().compute())


def reshape(_: Client) -> Any:
    """Flatten two axes, then average along the third."""
    flat = _draw((240, 300, 300), (24, 300, 300)).reshape((240, 90_000))
    return float(flat.T.rechunk((9000, 240)).mean(axis=1).std().compute())


def mask(_: Client) -> Any:
    """Select elements, then rows by their sum."""
    x = _draw((6000, 6000), 1000)
    return float(da.where(x > 0.5, x, 0)[x.sum(axis=1) > 3000].sum().compute())


def cholesky(_: Client) -> Any:
    """Factor a positive definite matrix."""
    x = _draw((2400, 2400), 400)
    definite = x @ x.T + 2400 * da.eye(2400, chunks=400)
    return float(da.linalg.cholesky(definite, lower=True).trace().compute())


def components(_: Client) -> Any:
    """Find principal components, then project onto three of them."""
    points = _draw((60_000, 200), (5000, 200))
    centred = points - points.mean(axis=0)
    scaled = centred / centred.std(axis=0)
    _, sizes, axes = da.linalg.svd(scaled)
    return sizes[:5].compute(), float((scaled @ axes[:3].T).std().compute())


def permuted(_: Client) -> Any:
    """Take rows in a random order."""
    rows = np.random.default_rng(3).permutation(5000)[:3000]
    return float(_draw((5000, 16_000), 1000)[rows].sum(axis=1).std().compute())


def blocks(_: Client) -> Any:
    """Stack arrays, and put some together as blocks."""
    parts = [_draw((1500, 1500), 500) + i for i in range(12)]
    stack, square = da.stack(parts), da.block([parts[:2], parts[2:4]])
    spread = (stack.max(axis=0) - stack.mean(axis=0)).sum()
    return float(spread.compute()), float(square.T.sum(axis=0).max().compute())


def _draw(shape: int | tuple[int, ...], chunks: int | tuple[int, ...]) -> Any:
    return da.random.default_rng(1).random(shape, chunks=chunks)
