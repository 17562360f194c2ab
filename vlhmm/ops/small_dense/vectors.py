"""Vectors of sixteen numbers as a type of numba: each operation is one instruction of LLVM, or a few.

LLVM's auto-vectorisation mostly fails for products of this size: accumulators must stay in registers while their operands are loaded.
A vector in a variable is in registers.

Arrays are flat, and places in them int64. numba's cache on disk does not see a change of this file: remove `__pycache__` then.
"""

from __future__ import annotations

from typing import Any, no_type_check

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

WIDTH = 16


class Vector(types.Type):
    """Sixteen numbers of a type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Any) -> None:
        number = manager.lookup(vector.dtype).get_value_type()
        super().__init__(manager, vector, ir.VectorType(number, WIDTH))


def _address(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [at])


def _vector_address(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> tuple[Any, int]:
    """As a pointer to a vector, and its alignment, that of a number."""
    address = _address(context, builder, array_type, array, at)
    vector = context.get_value_type(Vector(array_type.dtype))
    return builder.bitcast(address, vector.as_pointer()), context.get_abi_alignment(vector.element)


@intrinsic
@no_type_check
def load(typing, array, at):
    """Sixteen numbers of a flat array from `at` on."""

    def generate(context, builder, signature, arguments):
        pointer, align = _vector_address(context, builder, signature.args[0], *arguments)
        return builder.load(pointer, align=align)

    return Vector(array.dtype)(array, types.int64), generate


@intrinsic
@no_type_check
def store(typing, array, at, value):
    def generate(context, builder, signature, arguments):
        pointer, align = _vector_address(context, builder, signature.args[0], *arguments[:2])
        builder.store(arguments[2], pointer, align=align)
        return context.get_dummy_value()

    return types.void(array, types.int64, value), generate


@intrinsic
@no_type_check
def spread(typing, array, at):
    """One number of a flat array in every place."""

    def generate(context, builder, signature, arguments):
        number = builder.load(_address(context, builder, signature.args[0], *arguments))
        return _in_every_place(builder, number)

    return Vector(array.dtype)(array, types.int64), generate


@intrinsic
@no_type_check
def everywhere(typing, array, number):
    """A number in every place; the array says of which type."""

    def generate(context, builder, signature, arguments):
        return _in_every_place(builder, arguments[1])

    return Vector(array.dtype)(array, array.dtype), generate


@intrinsic
@no_type_check
def zeros(typing, array):
    """0 in every place, of the type of an array."""

    def generate(context, builder, signature, arguments):
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return Vector(array.dtype)(array), generate


@intrinsic
@no_type_check
def lowest(typing, array):
    """-inf in every place."""

    def generate(context, builder, signature, arguments):
        vector = context.get_value_type(signature.return_type)
        return ir.Constant(vector, [ir.Constant(vector.element, float("-inf"))] * WIDTH)

    return Vector(array.dtype)(array), generate


def _in_every_place(builder: Any, number: Any) -> Any:
    empty = ir.Constant(ir.VectorType(number.type, WIDTH), ir.Undefined)
    first = builder.insert_element(empty, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH))


@intrinsic
@no_type_check
def times(typing, left, right):
    return left(left, right), lambda context, builder, signature, arguments: builder.fmul(*arguments)


@intrinsic
@no_type_check
def plus(typing, left, right):
    return left(left, right), lambda context, builder, signature, arguments: builder.fadd(*arguments)


@intrinsic
@no_type_check
def over(typing, left, right):
    return left(left, right), lambda context, builder, signature, arguments: builder.fdiv(*arguments)


@intrinsic
@no_type_check
def minus(typing, left, right):
    return left(left, right), lambda context, builder, signature, arguments: builder.fsub(*arguments)


@intrinsic
@no_type_check
def plus_product(typing, total, left, right):
    """total + left * right, in one instruction where there is one."""

    def generate(context, builder, signature, arguments):
        product = builder.fmul(arguments[1], arguments[2], flags=("contract",))
        return builder.fadd(arguments[0], product, flags=("contract",))

    return total(total, left, right), generate


@intrinsic
@no_type_check
def larger(typing, left, right):
    def generate(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return left(left, right), generate


@intrinsic
@no_type_check
def smaller(typing, left, right):
    def generate(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered("<", *arguments), *arguments)

    return left(left, right), generate


@intrinsic
@no_type_check
def where_positive(typing, condition, value, otherwise):
    """`value` in places in which `condition` is above 0."""

    def generate(context, builder, signature, arguments):
        zero = ir.Constant(arguments[0].type, None)
        return builder.select(builder.fcmp_ordered(">", arguments[0], zero), *arguments[1:])

    return value(condition, value, otherwise), generate


@intrinsic
@no_type_check
def transpose(typing, source, source_rows, at, target, target_rows, target_at):
    """target[target_rows[k] + target_at + l] = source[source_rows[l] + at + k] for all k and l below 16."""

    def generate(context, builder, signature, arguments):
        source, source_rows, at, target, target_rows, target_at = arguments
        index = ir.IntType(64)

        def row(array_type, rows, number):
            return builder.load(_address(context, builder, array_type, rows, ir.Constant(index, number)))

        vectors = []
        for number in range(WIDTH):
            place = builder.add(row(signature.args[1], source_rows, number), at)
            pointer, align = _vector_address(context, builder, signature.args[0], source, place)
            vectors.append(builder.load(pointer, align=align))
        # A butterfly: rows whose indices differ in one bit swap halves, then quarters, ..., which exchanges that bit of row and column.
        width = WIDTH // 2
        while width:
            kept = [one if not one & width else one - width + WIDTH for one in range(WIDTH)]
            swapped = [one + width if not one & width else one + WIDTH for one in range(WIDTH)]
            masks = [
                ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [ir.Constant(ir.IntType(32), one) for one in mask])
                for mask in (kept, swapped)
            ]
            for first in range(WIDTH):
                if not first & width:
                    pair = vectors[first], vectors[first + width]
                    vectors[first] = builder.shuffle_vector(*pair, masks[0])
                    vectors[first + width] = builder.shuffle_vector(*pair, masks[1])
            width //= 2
        for number, vector in enumerate(vectors):
            place = builder.add(row(signature.args[4], target_rows, number), target_at)
            pointer, align = _vector_address(context, builder, signature.args[3], target, place)
            builder.store(vector, pointer, align=align)
        return context.get_dummy_value()

    rows = (source_rows, types.int64)
    return types.void(source, *rows, target, target_rows, types.int64), generate


def _reduced(name: str, *start: float) -> Any:
    """A horizontal reduction, by an intrinsic of LLVM."""

    @intrinsic
    @no_type_check
    def reduce(typing, vector):
        def generate(context, builder, signature, arguments):
            number = context.get_value_type(vector.dtype)
            first = [ir.Constant(number, one) for one in start]
            kinds = [one.type for one in (*first, arguments[0])]
            suffix = "f32" if isinstance(number, ir.FloatType) else "f64"
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(number, kinds), f"llvm.vector.reduce.{name}.v{WIDTH}{suffix}"
            )
            return builder.call(function, [*first, arguments[0]], fastmath=("reassoc", "nnan"))

        return vector.dtype(vector), generate

    return reduce


sum_of = _reduced("fadd", -0.0)
largest_of = _reduced("fmax")
smallest_of = _reduced("fmin")
