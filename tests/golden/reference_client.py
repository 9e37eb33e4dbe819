"""Independent client and two-round algorithm of a linear softmax model, in NumPy.

The model: pixels h in [0, 1]^4, concrete dropout with logit l, logits W h' + b, mean logits over S
copies, softmax. All gradients are written out by hand:

    z = sigmoid((l + log u - log(1 - u)) / T),  h' = h (1 - z) (1 + e^l),  T = 0.1
    o = 1/S sum_s (W h'_s + b),  loss = -log softmax(o)_y,  r = softmax(o) - onehot(y)
    dloss/dW = r (1/S sum_s h'_s)^T,  dloss/db = r,  dloss/dh'_s = W^T r / S
    dh'/dl = h [-(1 - z) z / T (1 + e^l) + (1 - z) e^l]

``theta`` is W row by row and then b. Random numbers and the assignment ``ids`` are arguments.
"""

import numpy as np
from reference_server import Adam

TEMPERATURE = 0.1


def loss_and_gradients(theta, logit, x, y, u):
    """Mean loss, its gradient in theta [P], and in the dropout logit.

    x [n, 4], y [n], u [n, S, 4] uniform in (0, 1).
    """
    classes = len(theta) // 5
    w, b = theta[: 4 * classes].reshape(classes, 4), theta[4 * classes :]
    n, samples = u.shape[:2]
    z = 1 / (1 + np.exp(-(logit + np.log(u) - np.log(1 - u)) / TEMPERATURE))
    h = x[:, None, :] * (1 - z) * (1 + np.exp(logit))
    out = (h @ w.T + b).mean(1)
    p = np.exp(out - out.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(n), y]).mean()
    r = p - np.eye(classes)[y]
    in_w, in_b = r.T @ h.mean(1) / n, r.mean(0)
    slope = -(1 - z) * z / TEMPERATURE * (1 + np.exp(logit)) + (1 - z) * np.exp(logit)
    in_logit = ((r @ w)[:, None, :] / samples * x[:, None, :] * slope).sum() / n
    return loss, np.concatenate([in_w.ravel(), in_b]), in_logit


def masked(theta, default, ids, k):
    """Subnetwork k: learned where the partition is below k."""
    return np.array([t if i < k else d for t, d, i in zip(theta, default, ids, strict=True)])


def client(theta, default, ids, logit, chunk, x, y, lr, batches, noise, hyper_noise):
    """Deltas of partitions chunk.. (dense, [P] each), gradient of the logit or None, mean loss.

    batches: partition -> list of index arrays; noise: partition -> list of [b, S, 4].
    """
    deltas, losses = {}, []
    for j in range(chunk, max(ids) + 1):
        moving = masked(theta, default, ids, j + 1)
        mine = [e for e, i in enumerate(ids) if i == j]
        means = []
        for batch, u in zip(batches[j], noise[j], strict=True):
            loss, g, _ = loss_and_gradients(moving, logit, x[batch], y[batch], u)
            moving[mine] -= lr * g[mine]
            means.append(loss)
        deltas[j] = moving[mine] - np.asarray(theta)[mine]
        losses.append(np.mean(means))
    gradient = None
    if chunk >= 1:
        before = masked(theta, default, ids, chunk)
        gradient = loss_and_gradients(before, logit, x, y, hyper_noise)[2]
    return deltas, gradient, np.mean(losses)


def algorithm(theta, default, ids, logit, rounds, server_lr, hyper_lr, eps):
    """Rounds of clients and per-partition Adam.

    rounds: list of functions ``(theta, logit) -> [(deltas, gradient, n), ...]``.
    """
    parts = max(ids) + 1
    mine = [[e for e, i in enumerate(ids) if i == j] for j in range(parts)]
    theta = np.array(theta, float)
    servers = [Adam(theta[m], server_lr, eps) for m in mine]
    psi = Adam([logit], hyper_lr, eps)
    for cohort in rounds:
        replies = cohort(theta.copy(), psi.w[0])
        for j in range(parts):
            sent = [deltas[j] for deltas, _, _ in replies if j in deltas]
            if sent:
                servers[j].step(list(-np.mean(sent, 0)))
                theta[mine[j]] = servers[j].w
        measured = [(g, n) for _, g, n in replies if g is not None]
        if measured:
            psi.step([sum(g * n for g, n in measured) / sum(n for _, n in measured)])
    return theta, psi.w[0]
