use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn a_divisor_divides(
        high in any::<u128>(), bits in 0..128_u32, near in any::<bool>(), number in any::<u128>(), less in 0..128_u32,
    ) {
        // Divisors of every size, some just below a power of two.
        let divisor = if near { u128::MAX >> bits } else { high >> bits }.max(1);
        let number = (number >> less).min(divisor.saturating_mul(1 << 63));
        let (quotient, rest) = Divisor::new(divisor).divide(number);
        type Wider = Uint<192, 3>;
        let (expected, left) = (Wider::from(number) << 64_usize).div_rem(Wider::from(divisor));
        prop_assert_eq!(Wider::from(quotient), expected);
        prop_assert_eq!(rest >> divisor.leading_zeros(), left.to::<u128>());
    }
}
