//! What an observed operator allocates on the thread that trains, once the first steps are over.

mod observed;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ampdoctor_torch::{Doctor, DoctorBuilder};
use observed::store;
use tch::{Device, Kind, Tensor};

/// The system's allocator, which counts what each thread asks of it.
struct Counting;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all is handed on to the system's allocator; the counter allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ASKED.try_with(|asked| asked.set(asked.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = ASKED.try_with(|asked| asked.set(asked.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of the 20th step of a chain of so many operators, its call of `step` included.
fn of_one_step(builder: Option<DoctorBuilder>, operators: usize) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let vs = store(1);
    let mut w = vs.root().var_copy("w", &Tensor::ones([64], (Kind::Float, Device::Cpu)));
    let mut doctor = builder.map(|builder| builder.run(dir.path().join("run")).attach(&vs));
    let mut asked = 0;
    for _ in 0..20 {
        let before = ASKED.with(Cell::get);
        let mut x = w.shallow_clone();
        for _ in 0..operators {
            x = x.tanh();
        }
        let loss = x.sum(Kind::Float);
        w.zero_grad();
        loss.backward();
        if let Some(doctor) = doctor.as_mut() {
            doctor.step(&loss);
        }
        asked = ASKED.with(Cell::get) - before;
    }
    asked
}

/// Allocations for each operator more. The other thread, which writes, has its own.
fn per_operator(builder: impl Fn() -> Option<DoctorBuilder>) -> f64 {
    let (few, many) = (of_one_step(builder(), 100), of_one_step(builder(), 300));
    (many as f64 - few as f64) / 200.0
}

#[test]
fn an_operator_of_a_step_that_is_not_scanned_allocates_nothing() {
    let ways: [fn() -> Option<DoctorBuilder>; 3] =
        [|| None, || Some(Doctor::builder().off()), || Some(Doctor::builder().every(1000))];
    assert_eq!(ways.map(per_operator), [0.0; 3]);
}

#[test]
fn a_scanned_operator_allocates_what_the_recording_is_given_of_it_and_nothing_else() {
    // The exponents of the activation and of its gradient, and what went into the operator, in a box.
    let each = per_operator(|| Some(Doctor::builder().every(1)));
    // Some tables of the step's end grow with its length.
    assert!((4.0..4.2).contains(&each), "{each}");
}
