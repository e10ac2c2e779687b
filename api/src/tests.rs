use super::*;

#[test]
fn times_are_rfc_3339_up_to_the_year_9999() {
    assert_eq!([0, u64::MAX].map(rfc3339), ["1970-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"]);
}
