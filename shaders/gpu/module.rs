//! The shaders, compiled to SPIR-V by `build.rs`. A module is named after the path of its `.comp` file.

macro_rules! modules {
    ($($name:ident,)+) => {
        /// A compiled shader.
        #[allow(missing_docs)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Module {
            $($name,)+
        }

        impl Module {
            /// Every module.
            pub const ALL: &[Module] = &[$(Module::$name,)+];

            /// Its name, for messages about it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Module::$name => stringify!($name),)+
                }
            }

            /// Whether its workgroups must consist of whole subgroups of
            /// [`DeviceLimits::subgroup_size`](super::DeviceLimits).
            #[must_use]
            pub fn needs_whole_subgroups(self) -> bool {
                matches!(
                    self,
                    Module::MatmulCooperative
                        | Module::MatmulFewRows
                        | Module::ExpertsCooperative
                        | Module::AttentionAttendMatrices
                )
            }

            /// Its SPIR-V: little-endian words.
            #[must_use]
            pub fn code(self) -> &'static [u8] {
                match self {
                    $(Module::$name => {
                        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/spirv/", stringify!($name), ".spv"))
                    })+
                }
            }
        }
    };
}
include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// The hash of the sources of all shaders. Shaders of other sources may round differently.
pub const SOURCES: &str = include_str!("../spirv/SOURCES");

#[cfg(test)]
mod tests {
    use super::Module;

    #[test]
    fn every_module_is_spir_v() {
        for module in Module::ALL {
            assert_eq!(module.code()[..4], 0x0723_0203_u32.to_le_bytes(), "{}", module.name());
            assert!(module.code().len().is_multiple_of(4));
        }
    }
}
