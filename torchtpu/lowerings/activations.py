"""Activation functions and their gradients, by the formulas of torch.nn.functional."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.elementary import sigmoid
from torchtpu.lowerings.pointwise import unary
from torchtpu.lowerings.registry import Array, lowering

_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715


def _relu(x: Array) -> Array:
    return jnp.where(x < 0, jnp.zeros((), x.dtype), x)  # keeps -0.0


unary("aten::relu", _relu, one_step=True)
unary("aten::silu", lambda x: x * sigmoid(x))
unary("aten::mish", lambda x: x * jnp.tanh(jax.nn.softplus(x)))
unary("aten::hardsigmoid", lambda x: jnp.clip(x + 3, 0, 6) / 6)
unary("aten::hardswish", lambda x: x * jnp.clip(x + 3, 0, 6) / 6)


@lowering("aten::silu_backward", compute="output")
def silu_backward(grad_output: Array, self: Array) -> Array:
    """grad * s (1 + x (1 - s)) with s = sigmoid(x)."""
    s = sigmoid(self)
    return grad_output * s * (1 + self * (1 - s))


@lowering("aten::mish_backward", compute="output")
def mish_backward(grad_output: Array, self: Array) -> Array:
    """grad * (t + x s (1 - t^2)) with t = tanh(softplus(x)), s = sigmoid(x)."""
    t = jnp.tanh(jax.nn.softplus(self))
    return grad_output * (t + self * sigmoid(self) * (1 - t * t))


@lowering("aten::hardsigmoid_backward", compute="output")
def hardsigmoid_backward(grad_output: Array, self: Array) -> Array:
    """grad / 6 between -3 and 3."""
    return jnp.where((self > -3) & (self < 3), grad_output / 6, 0)


@lowering("aten::hardswish_backward", compute="output")
def hardswish_backward(grad_output: Array, self: Array) -> Array:
    """0 below -3, grad above 3, grad * (x / 3 + 1 / 2) between."""
    between = grad_output * (self / 3 + 0.5)
    return jnp.where(self < -3, 0, jnp.where(self <= 3, between, grad_output))


@lowering("aten::sigmoid_backward", compute="output")
def sigmoid_backward(grad_output: Array, output: Array) -> Array:
    """grad * conj(y (1 - y))."""
    return grad_output * jnp.conj(output * (1 - output))


@lowering("aten::tanh_backward", compute="output")
def tanh_backward(grad_output: Array, output: Array) -> Array:
    """grad * conj(1 - y^2)."""
    return grad_output * jnp.conj(1 - output * output)


@lowering("aten::gelu", compute="output")
def gelu(self: Array, approximate: str = "none") -> Array:
    """x * Phi(x), or its tanh approximation."""
    if approximate == "tanh":
        return 0.5 * self * (1 + jnp.tanh(_gelu_inner(self)))
    return self * 0.5 * (1 + lax.erf(self * math.sqrt(0.5)))


@lowering("aten::gelu_backward", compute="output")
def gelu_backward(grad_output: Array, self: Array, approximate: str = "none") -> Array:
    """grad * (Phi(x) + x phi(x)), or the derivative of the tanh approximation."""
    if approximate == "tanh":
        tanh = jnp.tanh(_gelu_inner(self))
        inner = _TANH_SCALE * (1 + 3 * _TANH_CUBE * self * self)
        return grad_output * (0.5 * (1 + tanh) + 0.5 * self * (1 - tanh * tanh) * inner)
    cdf = 0.5 * (1 + lax.erf(self * math.sqrt(0.5)))
    pdf = jnp.exp(-0.5 * self * self) * (1 / math.sqrt(2 * math.pi))
    return grad_output * (cdf + self * pdf)


def _gelu_inner(x: Array) -> Array:
    return _TANH_SCALE * (x + _TANH_CUBE * x * x * x)


@lowering("aten::threshold", compute="output")
def threshold(self: Array, threshold: Array, value: Array) -> Array:
    """x above the threshold, else value; NaN stays."""
    return jnp.where(self <= threshold, value, self)


@lowering("aten::threshold_backward", compute="output", constants={"threshold": (0,)})
def threshold_backward(grad_output: Array, self: Array, threshold: Array) -> Array:
    """grad where x is above the threshold (or NaN), else 0."""
    return jnp.where(self <= threshold, 0, grad_output)


@lowering("aten::hardtanh", compute="output")
def hardtanh(self: Array, min_val: Array = -1, max_val: Array = 1) -> Array:
    """x clamped to [min_val, max_val]."""
    return jnp.clip(self, min_val, max_val)


@lowering("aten::hardtanh_backward", compute="output")
def hardtanh_backward(grad_output: Array, self: Array, min_val: Array, max_val: Array) -> Array:
    """grad inside of the open interval."""
    return jnp.where((self <= min_val) | (self >= max_val), 0, grad_output)


@lowering("aten::leaky_relu", compute="output")
def leaky_relu(self: Array, negative_slope: Array = 0.01) -> Array:
    """x above 0, negative_slope * x below."""
    return jnp.where(self > 0, self, self * negative_slope)


@lowering("aten::leaky_relu_backward", compute="output")
def leaky_relu_backward(
    grad_output: Array, self: Array, negative_slope: Array, self_is_result: bool
) -> Array:
    """grad above 0, negative_slope * grad below; the sign of the result is that of the input."""
    return jnp.where(self > 0, grad_output, grad_output * negative_slope)


@lowering("aten::elu", compute="output")
def elu(self: Array, alpha: Array = 1, scale: Array = 1, input_scale: Array = 1) -> Array:
    """scale * x above 0, scale * alpha * (exp(input_scale * x) - 1) below."""
    below = jnp.expm1(jnp.minimum(self, 0) * input_scale) * alpha * scale
    return jnp.where(self > 0, self * scale, below)


@lowering("aten::elu_backward", compute="output")
def elu_backward(
    grad_output: Array,
    alpha: Array,
    scale: Array,
    input_scale: Array,
    is_result: bool,
    self_or_result: Array,
) -> Array:
    """The slope of elu from its input or from its result."""
    if is_result:
        below = (self_or_result + alpha * scale) * input_scale
    else:
        below = jnp.exp(jnp.minimum(self_or_result, 0) * input_scale) * input_scale * alpha * scale
    return grad_output * jnp.where(self_or_result > 0, scale, below)


@lowering("aten::celu", compute="output")
def celu(self: Array, alpha: Array = 1.0) -> Array:
    """x above 0, alpha * (exp(x / alpha) - 1) below."""
    return jnp.where(self > 0, self, alpha * jnp.expm1(jnp.minimum(self, 0) / alpha))


@lowering("aten::softplus", compute="output")
def softplus(self: Array, beta: Array = 1, threshold: Array = 20) -> Array:
    """log(1 + exp(beta x)) / beta; x where beta x is above the threshold."""
    scaled = self * beta
    return jnp.where(
        scaled > threshold, self, jnp.log1p(jnp.exp(jnp.minimum(scaled, threshold))) / beta
    )


@lowering("aten::softplus_backward", compute="output")
def softplus_backward(grad_output: Array, self: Array, beta: Array, threshold: Array) -> Array:
    """grad * sigmoid(beta x); grad where beta x is above the threshold."""
    scaled = self * beta
    return jnp.where(scaled > threshold, grad_output, grad_output * sigmoid(scaled))


@lowering("aten::softshrink", compute="output")
def softshrink(self: Array, lambd: Array = 0.5) -> Array:
    """x moved towards 0 by lambd; 0 within lambd of 0; NaN stays."""
    inside = jnp.where(jnp.isnan(self), self, 0)
    return jnp.where(self > lambd, self - lambd, jnp.where(self < -lambd, self + lambd, inside))


@lowering("aten::hardshrink", compute="output")
def hardshrink(self: Array, lambd: Array = 0.5) -> Array:
    """x outside of [-lambd, lambd], else 0; NaN stays."""
    return jnp.where((self >= -lambd) & (self <= lambd), 0, self)


@lowering("aten::softshrink_backward", compute="output")
def softshrink_backward(grad_output: Array, self: Array, lambd: Array) -> Array:
    """grad outside of [-lambd, lambd]."""
    return jnp.where((self >= -lambd) & (self <= lambd), 0, grad_output)


@lowering("aten::hardshrink_backward", compute="output")
def hardshrink_backward(grad_out: Array, self: Array, lambd: Array) -> Array:
    """grad outside of [-lambd, lambd]."""
    return jnp.where((self >= -lambd) & (self <= lambd), 0, grad_out)


@lowering("aten::_prelu_kernel", compute="output")
def prelu(self: Array, weight: Array) -> Array:
    """x above 0, weight * x below; weight is shaped to broadcast along the channels."""
    return jnp.where(self > 0, self, weight * self)


@lowering("aten::_prelu_kernel_backward", compute="output")
def prelu_backward(grad_output: Array, self: Array, weight: Array) -> tuple[Array, Array]:
    """Gradients of the input and, not yet summed, of the weight."""
    grad = jnp.where(self > 0, grad_output, weight * grad_output)
    return grad, jnp.where(self > 0, 0, self * grad_output)


@lowering("aten::glu", compute="output")
def glu(self: Array, dim: int = -1) -> Array:
    """a * sigmoid(b) of the halves [a, b] along dim."""
    a, b = jnp.split(self, 2, dim)
    return a * sigmoid(b)


@lowering("aten::glu_backward", compute="output")
def glu_backward(grad_output: Array, self: Array, dim: int) -> Array:
    """[grad * s, grad * a * s (1 - s)] with s = sigmoid(b)."""
    a, b = jnp.split(self, 2, dim)
    s = sigmoid(b)
    return jnp.concatenate([grad_output * s, grad_output * a * s * (1 - s)], dim)


@lowering("aten::log_sigmoid_forward")
def log_sigmoid_forward(self: Array) -> tuple[Array, Array]:
    """-softplus(-x); the second result, a buffer of torch's CPU kernel, is exp(-|x|)."""
    wide = self.astype(jnp.float32) if self.dtype.itemsize == 2 else self
    buffer = jnp.exp(-jnp.abs(wide))
    return jnp.minimum(wide, 0) - jnp.log1p(buffer), buffer


@lowering("aten::log_sigmoid_backward", compute="output")
def log_sigmoid_backward(grad_output: Array, self: Array, buffer: Array) -> Array:
    """grad * sigmoid(-x)."""
    return grad_output * sigmoid(-self)


@lowering("aten::rrelu_with_noise_backward", compute="output")
def rrelu_with_noise_backward(
    grad_output: Array,
    self: Array,
    noise: Array,
    lower: Array,
    upper: Array,
    training: bool,
    self_is_result: bool,
) -> Array:
    """grad * noise in training, else the gradient of leaky_relu at the mean slope."""
    slope = (lower + upper) / 2
    if training:
        return jnp.where(
            upper - lower > 1e-6,
            grad_output * noise,
            jnp.where(self > 0, grad_output, grad_output * slope),
        )
    return jnp.where(self > 0, grad_output, grad_output * slope)
