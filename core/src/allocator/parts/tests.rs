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
        let (dividend, divided_by) = (number.widened() << 64_u32, divisor.widened());
        prop_assert_eq!(quotient.widened(), dividend / divided_by);
        prop_assert_eq!((rest >> divisor.leading_zeros()).widened(), dividend % divided_by);
    }
}
