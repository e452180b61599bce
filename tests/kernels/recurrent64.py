"""Ops with a recurrent state in float64 numpy, each from a form of its formula that the ops do not use.

One request at a time; states are those before the first token. All return what the op does: outputs, last state.
"""

from __future__ import annotations

import numpy as np


def gated_delta(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    log_decay: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray,
    scale: float,
    norm_eps: float | None,
) -> tuple[np.ndarray, np.ndarray]:
    """S = (1 - beta k k^T) diag(decay) S + beta k v^T as products of matrices (arXiv:2412.06464, equation 10)."""
    out, last = np.empty(v.shape), np.array(state)
    dim, group = k.shape[-1], v.shape[1] // k.shape[1]
    if norm_eps is not None:
        q, k = (x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + norm_eps) for x in (q, k))
    for t, head in np.ndindex(*v.shape[:2]):
        key, query = k[t, head // group], q[t, head // group]
        decay = np.exp(log_decay[t, head]) * np.ones(dim)
        turn = (np.eye(dim) - beta[t, head] * np.outer(key, key)) * decay
        last[head] = turn @ last[head] + beta[t, head] * np.outer(key, v[t, head])
        out[t, head] = scale * query @ last[head]
    return out, last


def selective_scan(
    x: np.ndarray,
    dt: np.ndarray,
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray,
    D: np.ndarray | None,
    state: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The sum over all earlier tokens (arXiv:2405.21060, section 2.2), no recurrence. Mamba's shapes or Mamba-2's."""
    if x.ndim == 2:
        out, last = selective_scan(x[:, :, None], dt, A, B[:, None], C[:, None], D, state[:, None])
        return out[:, :, 0], last[:, 0]
    heads = np.arange(x.shape[1]) // (x.shape[1] // B.shape[1])
    steps = dt[:, :, None] * A.reshape(len(heads), -1)  # [T, H, 1 or N]
    since = np.concatenate([np.zeros_like(steps[:1]), np.cumsum(steps, axis=0)])
    taken = dt[:, :, None, None] * x[..., None] * B[:, heads, None]  # [T, H, P, N]
    states = [state]
    for t in range(1, len(x) + 1):
        # decay from after token s to after token t, and from before the first token
        left = np.exp(since[t] - since[1 : t + 1])[:, :, None]
        states.append((left * taken[:t]).sum(axis=0) + np.exp(since[t])[:, None] * state)
    out = np.einsum("thpn,thn->thp", np.array(states)[1:], C[:, heads])
    return out if D is None else out + D[:, None] * x, states[-1]


def short_conv(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, state: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """np.convolve by channel, with the filter turned around."""
    whole = np.concatenate([state, x])
    columns = [np.convolve(whole[:, c], weight[c, ::-1], mode="valid") for c in range(x.shape[1])]
    out = np.stack(columns, axis=1)[: len(x)] if len(x) else np.empty(x.shape)
    return out if bias is None else out + bias, whole[len(x) :]
