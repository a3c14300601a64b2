"""The error budget of gradients: how far those of a correct implementation may be from the float64 truth.

A first-order error analysis again, as in ``attnkit.tolerance``: of the backward pass that recomputes the weights from
the scores and the stored log-sum-exp, and takes ``delta = do·o`` from the stored output (Dao et al., *FlashAttention*,
NeurIPS 2022, algorithm 4). One that keeps the weights, or sums ``p_j dp_j`` for ``delta``, rounds in fewer places.

Axes: ``n`` keys that take part in a row, a sink last; ``E`` value head size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnkit.numerics import Numerics
from attnkit.tolerance import FloatArray, RowFacts, lse_budget, output_budget, score_error


class RowGradients(NamedTuple):
    """What one row hands on to the gradients, and how far it may be off; all ``[n]``.

    Attributes
    ----------
    weight, weight_error
        ``p_j``, as it is multiplied with the cotangent of the output: for the gradient of the values.
    score, score_error
        ``ds_j``, the gradient with respect to a final score: that of the bias and of the sinks.
    product, product_error
        ``du_j``, the gradient with respect to ``scale * q·k_j``: for the gradients of query and key.
    """

    weight: FloatArray
    weight_error: FloatArray
    score: FloatArray
    score_error: FloatArray
    product: FloatArray
    product_error: FloatArray


def row_gradients(
    row: RowFacts, cotangent: FloatArray, lse_cotangent: float, softcap: float | None, numerics: Numerics
) -> RowGradients:
    """Follow the errors of one row back to its products.

    With the cotangents ``do`` of the output and ``dL`` of the log-sum-exp, ``f`` the growth of the numerics, ``e_j``,
    ``tau_o`` and ``tau_L`` the bounds of score, output and log-sum-exp, and ``t_j`` the capped score over the cap::

        ds_j = p_j x_j,  x_j = do·v_j - do·o + dL,  du_j = ds_j (1 - t_j^2)

    the bounds are::

        r_j     = e_j + tau_L + u_a (2 |s_j| + 2 |L| + exp_ulps)              relative, of the recomputed weight
        weight  = (r_j + u_p) p_j + w_p                                       stored
        x       = u_a (f(E) + 2) (|do|·|v_j| + |do|·|o|) + |do|·tau_o + 2 u_a |dL|
        score   = p_j (r_j |x_j| + x) + (u_a + u_p) |ds_j| + w_p              product, stored
        product = score (1 - t_j^2) + |ds_j| c_j                              soft-cap, see ``_cap_slope``
    """
    reach = row.value @ cotangent - row.output @ cotangent + lse_cotangent
    size = np.abs(row.value) @ np.abs(cotangent) + np.abs(row.output) @ np.abs(cotangent)
    relative = score_error(row, numerics) + lse_budget(row, numerics)
    relative += numerics.u_a * (2 * np.abs(row.score) + 2 * abs(row.lse) + numerics.exp_ulps)
    reach_error = numerics.u_a * ((numerics.growth(cotangent.size) + 2) * size + 2 * abs(lse_cotangent))
    reach_error += np.abs(cotangent) @ output_budget(row, numerics)
    score = row.weight * reach
    error = row.weight * (relative * np.abs(reach) + reach_error)
    error += (numerics.u_a + numerics.u_p) * np.abs(score) + numerics.w_p
    slope, slope_error = _cap_slope(row, softcap, numerics)
    return RowGradients(
        weight=row.weight,
        weight_error=row.weight * (relative + numerics.u_p) + numerics.w_p,
        score=score,
        score_error=error,
        product=score * slope,
        product_error=error * slope + np.abs(score) * slope_error,
    )


def _cap_slope(row: RowFacts, softcap: float | None, numerics: Numerics) -> tuple[FloatArray, FloatArray]:
    """Give the derivative ``1 - t^2`` of the soft-cap, and the bound of its error.

    The bound is::

        c_j = 2 |t_j| (1 - t_j^2) e / softcap + 2 t_j^2 (u_s + tanh_ulps u_a) + 2 u_a

    with ``e`` the bound of the product before it is capped.
    """
    if softcap is None:
        return np.ones_like(row.score), np.zeros_like(row.score)
    capped = row.capped / softcap
    slope = 1 - capped**2
    before = (numerics.u_s + numerics.u_q + (numerics.growth(row.head_dim) + 2) * numerics.u_a) * row.size
    error = 2 * capped * slope * before / softcap
    error += 2 * capped**2 * (numerics.u_s + numerics.tanh_ulps * numerics.u_a) + 2 * numerics.u_a
    return slope, error
