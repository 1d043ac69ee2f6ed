//! One binary for all targets, because linking it takes long: `DFQ_FUZZ_TARGET` names the one that is meant.

#![no_main]

use std::sync::OnceLock;

use dfq_fuzz::Target;
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<Target> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("DFQ_FUZZ_TARGET").expect("DFQ_FUZZ_TARGET names a target");
        let target = Target::named(&name).expect("there is such a target");
        TARGET.set(target).expect("it is set once");
    },
    |input: &[u8]| TARGET.wait().check(input)
);
