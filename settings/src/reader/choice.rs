//! Enums with a name for each variant.

/// An enum with a name for each variant, which files, logs and metrics use. [`choices!`](crate::choices) implements it.
pub trait Choice: Sized + 'static {
    /// The names of the variants, in their order.
    const NAMES: &'static [&'static str];
}

/// Defines enums with a name for each variant, with [`Choice`], [`FromText`](super::FromText) and [`Display`].
///
/// `choices! { for Mode { Shape = "shape" } }` gives the variants of an enum of another crate their names, without
/// `Display`.
///
/// [`Display`]: std::fmt::Display
#[macro_export]
macro_rules! choices {
    (for $name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        impl $crate::reader::Choice for $name {
            const NAMES: &'static [&'static str] = &[$($text),+];
        }

        impl $crate::reader::FromText for $name {
            fn from_text(text: &str, _: $crate::reader::Kind) -> Result<$name, $crate::reader::ValueError> {
                match text {
                    $($text => Ok($name::$variant),)+
                    _ => Err($crate::reader::ValueError::NotAllowed),
                }
            }
        }
    };
    ($($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $text:literal),+ $(,)?
    })+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$variant_meta])* $variant),+
        }

        $crate::choices! { for $name { $($variant = $text),+ } }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $($name::$variant => $text),+
                })
            }
        }
    )+};
}
