"""Define the constants of `vector_math`: one `FloatTables` per float type, with near-minimax coefficients rounded to it.

Each polynomial minimises the largest error, in units in the last place of the result, on the reduced interval named in its
description.  float32: linear programming on 160 Chebyshev points; coefficients were then rounded one at a time, lowest power first,
refitting the rest after each and keeping the best few of the neighbouring roundings.  float64: the Remez exchange in 45-digit
arithmetic, rounded in the same order.  "0.8 ulp" is the error of the fit alone, without rounding errors of the evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FloatTables:
    """Constants of one float type.  Polynomials are lowest power first.

    Attributes:
        mantissa: bits of the fraction field.
        bias: bias of the exponent field; also the largest exponent of a finite number.
        tiny: the smallest normal number.
        magic: 1.5 * 2**mantissa: `(t + magic) - magic` is t rounded half to even for |t| < 2**(mantissa - 1), and the low bits of
            `t + magic` hold that integer in two's complement.
        log2e: log2(e).
        ln2: ln(2); `ln2_tail` is its rounding error.
        exp_range: exp is 0 (after rounding) below and infinite above.
        exp2_range: the same for exp2.
        exp: e**r for |r| <= ln(2)/2, with e**0 = 1 and slope 1.
        exp2: 2**f for |f| <= 1/2.
        expm1: (e**r - 1 - r) / r**2 for |r| <= ln(2)/2, weighted for the relative error of e**r - 1.
        log: (log(1 + f) - f) / f**2 for 1 + f in [sqrt(1/2), sqrt(2)], weighted for the relative error of log(1 + f).
        sqrt_half: bits of sqrt(1/2).
        tanh_end: tanh rounds to 1 from this argument on.
        erf: -log(erfc(a)) / a for 0 <= a <= erf_end, weighted for the relative error of erf.
        erf_end: erf rounds to 1 from this argument on.
    """

    mantissa: int
    bias: int
    tiny: float
    magic: float
    log2e: float
    ln2: float
    ln2_tail: float
    exp_range: tuple[float, float]
    exp2_range: tuple[float, float]
    exp: tuple[float, ...]
    exp2: tuple[float, ...]
    expm1: tuple[float, ...]
    log: tuple[float, ...]
    sqrt_half: int
    tanh_end: float
    erf: tuple[float, ...]
    erf_end: float


FLOAT32 = FloatTables(
    mantissa=23,
    bias=127,
    tiny=2.0**-126,
    magic=1.5 * 2.0**23,
    log2e=1.44269502162933349609375,
    ln2=0.693147182464599609375,
    ln2_tail=-1.904654212327568145e-09,
    exp_range=(-104.0, 89.0),
    exp2_range=(-151.0, 128.0),
    # 1.3 ulp above 1 and 0.7 ulp below, where an ulp is half as large.
    exp=(1.0, 1.0, 0.4999929964542389, 0.1666724532842636, 0.04188378155231476, 0.00830097682774067),
    # 1.1 ulp above 1 and 0.5 ulp below.
    exp2=(1.0, 0.693146824836731, 0.24022237956523895, 0.05550896003842354, 0.009671720676124096, 0.001322456169873476),
    # 0.1 ulp.
    expm1=(0.4999999701976776, 0.1666654646396637, 0.04166744276881218, 0.008366256020963192, 0.0013869795948266983),
    # 0.3 ulp.
    log=(
        -0.49999991059303284,
        0.3333394527435303,
        -0.2500177323818207,
        0.19962234795093536,
        -0.16570401191711426,
        0.14916501939296722,
        -0.14307096600532532,
        0.08737576752901077,
    ),
    sqrt_half=0x3F3504F3,
    tanh_end=9.25,
    # 0.4 ulp, most of it from rounding the first coefficient.
    erf=(
        1.128379225730896,
        0.6366152167320251,
        0.1028277724981308,
        -0.01937037706375122,
        0.00028437876608222723,
        0.0011908841552212834,
        -0.0003593148139771074,
        3.7935187719995156e-05,
    ),
    erf_end=4.0,
)

_EXP64 = (
    # 2**-59.6 relative to e**r - 1.
    0.5,
    0.16666666666666677,
    0.04166666666666669,
    0.008333333333321738,
    0.0013888888888884446,
    0.0001984126988520167,
    2.4801587300192265e-05,
    2.755724486503661e-06,
    2.7557308632940174e-07,
    2.5109113821949092e-08,
    2.0901897936209057e-09,
)

FLOAT64 = FloatTables(
    mantissa=52,
    bias=1023,
    tiny=2.0**-1022,
    magic=1.5 * 2.0**52,
    log2e=1.4426950408889634,
    ln2=0.6931471805599453,
    ln2_tail=2.3190468138462996e-17,
    exp_range=(-746.0, 710.0),
    exp2_range=(-1076.0, 1024.0),
    exp=(1.0, 1.0, *_EXP64),
    # 2**-57.1.
    exp2=(
        1.0,
        0.6931471805599453,
        0.24022650695910172,
        0.055504108664824574,
        0.009618129107577107,
        0.0013333558145566438,
        0.00015403530478794012,
        1.525273473981321e-05,
        1.321542451654239e-06,
        1.0177655061417449e-07,
        7.075610705211866e-09,
        4.5195006662730943e-10,
    ),
    expm1=_EXP64,
    # 2**-57.8.
    log=(
        -0.5,
        0.3333333333333363,
        -0.25000000000000283,
        0.19999999999885923,
        -0.16666666666507782,
        0.14285714300764793,
        -0.12500000027741304,
        0.11111110134779695,
        -0.09999997748094408,
        0.09090944355673812,
        -0.08333432417868065,
        0.07691569000148465,
        -0.07140322801956317,
        0.06675353363476541,
        -0.06288404846653291,
        0.05835977889705288,
        -0.05222292787124443,
        0.05212251541372654,
        -0.0644432855510992,
        0.06398626992407513,
        -0.029096181952191717,
    ),
    sqrt_half=0x3FE6A09E667F3BCD,
    tanh_end=20.0,
    # 2**-57.5; not refitted while rounding.
    erf=(
        1.1283791670955126,
        0.6366197723675836,
        0.10277260330178876,
        -0.019128447005070368,
        -0.00020919469484134527,
        0.0016962063857301193,
        -0.0005901255527864548,
        2.5878603776526766e-05,
        6.449186251007447e-05,
        -2.9724050187380133e-05,
        3.4072728503307074e-06,
        2.835130043490714e-06,
        -1.7415367137864975e-06,
        3.363559020215491e-07,
        1.3718763348064365e-07,
        -1.4176469072185406e-07,
        6.573457338154985e-08,
        -2.0962997589854266e-08,
        4.997793038378313e-09,
        -9.082409497358557e-10,
        1.2484392005608558e-10,
        -1.261135417889244e-11,
        8.845876068711263e-13,
        -3.850685560351967e-14,
        7.834576259506804e-16,
    ),
    erf_end=6.0,
)

SIGMOID_END = 40.0
"""sigmoid rounds to 1 from this argument on, in float32 and float64."""

SIN = (-0.1666666567325592, 0.008333304896950722, -0.0001983857073355466, 2.7444029910839163e-06, -2.286980560484153e-08)
"""(sin(r) - r) / r**3 in powers of r**2 for |r| <= 0.626 pi, float32, 0.01 ulp.  The interval exceeds 0.5 pi because x / pi is off by up
to 1/8 when it is rounded to an integer, for the largest x below each of TURN_LIMITS (head * x is rounded, tail * x is missing); both
terms are added afterwards."""

PI = 3.141592653589793

TURN_LIMITS = (2.0**50, 2.0**76, 2.0**102)
HALF_TURNS = (
    (0.3183098861837907, -1.9678676675182486e-17),
    (1.284127663345183e-08, -2.7170920538718753e-25),
    (1.46854777018591e-16, 5.090832193749855e-33),
    (3.037013244824923e-24, 1.5718273777458022e-40),
)
"""1/pi as head + tail in float64 for |x| below each of TURN_LIMITS and above the last.  A float32 x >= 2**50 is a multiple of
2**27, so the bits of 1/pi worth 2**-26 and more give whole turns and are omitted; in the same way 2**-52 and 2**-78."""

POW_LOG2 = (
    1.4426950409393458,
    -0.7213475252132147,
    0.48089832072946004,
    -0.36067280054666545,
    0.2885406435514077,
    -0.2405041741180044,
    0.2060962566110984,
    -0.17904695266821974,
    0.15900149219875892,
    -0.15698225523265583,
    0.1548575529003554,
    -0.08634603098382736,
)
"""log2(1 + f) / f in float64 for 1 + f in [sqrt(1/2), sqrt(2)], 2**-33.2."""

POW_EXP2 = (
    1.0,
    0.6931471824645996,
    0.24022647738456726,
    0.05550359562039375,
    0.009618498384952545,
    0.0013390975072979927,
    0.00015329834423027933,
)
"""2**f in float32 for |f| <= 1/2, 0.02 ulp."""

MULTIPLIED_EXPONENTS = (0, 1, 2, 3, 4, -1, -2, 0.5, -0.5)
"""Constant exponents for which pow expands to a few multiplications, a division or a root."""

OPERATIONS: dict[str, tuple[int, int]] = {
    "exp": (14, 0),
    "exp2": (13, 0),
    "log": (27, 0),
    "log2": (27, 0),
    "tanh": (19, 0),
    "erf": (25, 0),
    "sigmoid": (16, 0),
    "sin": (15, 18),
    "cos": (13, 20),
    "rsqrt": (2, 0),
    "pow": (45, 25),
    "floordiv": (2, 19),
    "mod": (2, 17),
}
"""The cost of each float32 expansion: operations on 32-bit lanes and on 64-bit lanes, which take twice the vectors.  tanh, sigmoid and
rsqrt include one division, rsqrt also a square root.  A clamp counts as 2 or 4 and is 1 or 2 instructions on x86; literals and
reinterpretations are free."""
