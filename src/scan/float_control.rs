//! The processor's floating-point control, put to its default for the length of a scan.
//!
//! Training code sets it: `torch.set_flush_denormal(True)` makes every subnormal read as zero, and debuggers let a NaN trap. A
//! scan has to see what is in memory, and to trap on none of it; the caller gets back the control that it had.

/// Restores the control word on drop, where it was another one.
pub(super) struct DefaultFloatControl(#[cfg(target_arch = "x86_64")] Option<u32>);

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::DefaultFloatControl;
    use std::arch::asm;

    /// All exceptions masked, rounding to nearest, subnormals kept.
    const DEFAULT: u32 = 0x1f80;
    /// The sticky flags of what has happened, which control nothing.
    const FLAGS: u32 = 0x3f;

    impl DefaultFloatControl {
        pub fn enter() -> Self {
            let mut current = 0u32;
            // SAFETY: stores the control word to a variable of its size.
            unsafe { asm!("stmxcsr [{}]", in(reg) &mut current, options(nostack, preserves_flags)) };
            if current & !FLAGS == DEFAULT {
                return Self(None);
            }
            load(DEFAULT);
            Self(Some(current))
        }
    }

    impl Drop for DefaultFloatControl {
        fn drop(&mut self) {
            if let Some(before) = self.0 {
                load(before);
            }
        }
    }

    fn load(control: u32) {
        // SAFETY: either the default or a word that the processor itself had stored.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &control, options(nostack, preserves_flags)) };
    }

    #[cfg(test)]
    mod tests {
        use super::super::super::scan_slice;
        use super::*;

        fn control() -> u32 {
            let mut current = 0u32;
            // SAFETY: as in `enter`.
            unsafe { asm!("stmxcsr [{}]", in(reg) &mut current, options(nostack, preserves_flags)) };
            current & !FLAGS
        }

        #[test]
        fn subnormals_are_seen_where_the_trainer_flushes_them() {
            let elements = [f32::from_bits(1), f32::from_bits(0x7f_ffff)];
            let expected = scan_slice(&elements);
            assert_eq!((expected.zeros, expected.exponents.lowest()), (0, Some(-149)));
            let flushing = DEFAULT | 1 << 15 | 1 << 6;
            load(flushing);
            let found = scan_slice(&elements);
            let after = control();
            load(DEFAULT);
            assert_eq!(found, expected);
            assert_eq!(after, flushing);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl DefaultFloatControl {
    pub fn enter() -> Self {
        Self()
    }
}
