//! The callbacks' way into the observer's state: everything that fails in here ends the observing, never the training.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::time::Instant;

use ampdoctor::observation::{Observation, Parameter, RecipeEvent, ScalerConfig, ScalerEvent, Site, SiteId};

use tch::nn::Variables;

use super::border::{RawOp, RawTensor, ampd_plant_exception};
use super::params::ParamTable;
use super::state::{State, Wanted};
use crate::events::{self, Listener, Signal};
use crate::shadow::{Held, Original};

impl StepTrace {
    /// Whether the step was skipped, or something in it was not finite that no mask put there.
    pub(crate) fn is_alarming(&self) -> bool {
        let skipped = |event: &ScalerEvent| matches!(event, ScalerEvent::Stepped { applied: false, .. });
        self.scaler.iter().any(skipped) || self.non_finite
    }
}

/// What one doctor observes, shared with the shim (weakly) and with hooks that may outlive it.
pub(crate) struct Attachment {
    state: Mutex<State>,
    alive: AtomicBool,
    failure: Mutex<Option<String>>,
    /// Time spent on our own scaler's reports during this step, in nanoseconds; the shim keeps that of its callbacks.
    scaler_ns: AtomicU64,
    /// Callbacks that came while another was at work, and were passed over.
    contended: AtomicU64,
}

/// How the next step is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watching {
    /// Whether its tensors are scanned.
    pub full: bool,
    /// Whether its operators are reported; those of a full step are.
    pub watched: bool,
}

/// One step, taken out of the attachment.
pub(crate) struct StepTrace {
    pub observations: Vec<Observation>,
    pub scaler: Vec<ScalerEvent>,
    pub recipe: Vec<RecipeEvent>,
    pub scaler_config: Option<ScalerConfig>,
    pub loss_scale: Option<f64>,
    pub foreign_scaler: bool,
    pub unscanned: u32,
    pub blind_spots: BTreeSet<String>,
    /// Time spent on our own scaler's reports.
    pub scaler_ns: u64,
    pub full: bool,
    /// Whether operators were reported, scanned or not.
    pub watched: bool,
    /// Whether a value was not finite, other than the -inf of a mask.
    pub non_finite: bool,
}

impl Attachment {
    /// A attachment over the parameters of these VarStores. The first step is `full` or not.
    pub(crate) fn new(stores: Vec<Arc<Mutex<Variables>>>, full: bool) -> Self {
        let mut state = State::new(ParamTable::new(stores));
        let State { params, layers, .. } = &mut state;
        params.refresh(layers);
        state.begin_step(full, full);
        Self {
            state: Mutex::new(state),
            alive: AtomicBool::new(true),
            failure: Mutex::new(None),
            scaler_ns: AtomicU64::new(0),
            contended: AtomicU64::new(0),
        }
    }

    /// A weak reference for the shim, as a pointer; given back by `ampd_release_attachment`.
    pub(super) fn into_weak_handle(attachment: &Arc<Self>) -> *mut c_void {
        Weak::into_raw(Arc::downgrade(attachment)).cast_mut().cast()
    }

    /// Parameters and buffers as they are now.
    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        self.state.lock().map(|state| state.params.describe()).unwrap_or_default()
    }

    /// The device of the parameters: `cpu`, `cuda:0`.
    pub(crate) fn device(&self) -> String {
        self.state.lock().map(|state| state.params.device()).unwrap_or_default()
    }

    /// Why observing ended, where it did.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().ok().and_then(|failure| failure.clone())
    }

    /// Ends observing for good.
    pub(crate) fn fail(&self, what: &str) {
        if self.alive.swap(false, Relaxed)
            && let Ok(mut failure) = self.failure.lock()
        {
            *failure = Some(what.to_owned());
        }
    }

    /// Ends the step, gives what it showed, and begins the next one.
    pub(crate) fn take_step(
        &self,
        intern: impl FnMut(&Site) -> SiteId,
        next: impl FnOnce(&StepTrace) -> Watching,
    ) -> Option<StepTrace> {
        let mut state = self.state.lock().ok()?;
        state.finish_step();
        let foreign = state.foreign.seen;
        let updated = state.updated;
        let own = std::mem::take(&mut state.scaler_events);
        let is_own = !own.is_empty();
        let (scaler, positions) = if is_own { (own, Vec::new()) } else { state.foreign.take_events(updated) };
        let State { recipe, device, .. } = &mut *state;
        let recipe = recipe.take(is_own, device, |at| positions.get(at as usize).copied().unwrap_or(at));
        let scaler_config = state.scaler_config.take().or_else(|| state.foreign.config.take());
        let mut trace = std::mem::take(&mut state.trace);
        let non_finite = trace.has_fault();
        let taken = StepTrace {
            non_finite,
            observations: trace.observations(&state.layers, &state.names, intern),
            loss_scale: state.loss_scale.or(state.foreign.scale).or_else(|| scale_of(&scaler)),
            scaler,
            recipe,
            scaler_config,
            foreign_scaler: foreign,
            unscanned: state.unscanned,
            blind_spots: std::mem::take(&mut state.blind_spots),
            scaler_ns: self.scaler_ns.swap(0, Relaxed),
            full: state.full,
            watched: state.watched,
        };
        state.trace = trace;
        let State { params, layers, .. } = &mut *state;
        params.refresh(layers);
        let Watching { full, watched } = next(&taken);
        state.begin_step(full, watched || full);
        let State { params, strangers, blind_spots, .. } = &mut *state;
        blind_spots.extend(strangers.who_stayed(params));
        Some(taken)
    }

    /// The model's tensors for a shadow, and what is known of the gradients that they hold; `None` where the state is lost or a VarStore is locked.
    pub(crate) fn for_shadow(&self, step: u64) -> Option<(Vec<Original>, Held)> {
        let mut state = self.state.lock().ok()?;
        // What is open is known by its place in the table, which may change.
        state.close_update();
        let State { params, layers, .. } = &mut *state;
        params.refresh(layers).then(|| (state.originals(), state.held(step)))
    }

    /// Whether our own scaler refused a call since the last step ended.
    pub(crate) fn was_refused(&self) -> bool {
        self.state.lock().is_ok_and(|state| state.recipe.was_refused())
    }

    /// Callbacks passed over because another was at work.
    pub(crate) fn contended(&self) -> u64 {
        self.contended.load(Relaxed)
    }

    /// Runs a callback's work on the state; nothing that fails in it leaves this function.
    fn enter(&self, callback: Callback, work: impl FnOnce(&mut State)) {
        if !self.alive.load(Relaxed) {
            return;
        }
        let result = catch_unwind(AssertUnwindSafe(|| match self.state.try_lock() {
            Ok(mut state) => {
                panic_if_planted(callback);
                work(&mut state);
            }
            Err(TryLockError::WouldBlock) => {
                self.contended.fetch_add(1, Relaxed);
            }
            Err(TryLockError::Poisoned(_)) => self.fail("an earlier callback failed"),
        }));
        if let Err(panic) = result {
            self.fail(&format!("a panic in {}: {}", callback.name(), panic_text(panic.as_ref())));
        }
    }
}

impl Listener for Attachment {
    fn hear(&self, signal: &Signal) {
        let began = Instant::now();
        self.enter(Callback::Scaler, |state| match signal {
            Signal::Config(config) => state.scaler_config = Some(config.clone()),
            Signal::Event(event) => {
                match *event {
                    ScalerEvent::Scaled { scale } => {
                        state.loss_scale = Some(scale);
                        state.scale_in_force = Some(scale);
                    }
                    ScalerEvent::Updated { to, .. } => state.scale_in_force = Some(to),
                    _ => {}
                }
                state.scaler_events.push(*event);
                state.note_scaler_event(event);
            }
            Signal::Refused(refused) => {
                state.note_refusal(refused.optimizer, refused.refusal, &refused.parameters);
            }
            Signal::Withheld(withheld) => state.note_withheld(&withheld.0),
            Signal::Masters(masters) => {
                // What is open is known by its place in the table, which is about to change.
                state.close_update();
                state.unlike_masters.clear();
                let State { params, layers, .. } = state;
                params.add_masters(masters);
                params.refresh(layers);
            }
        });
        self.scaler_ns.fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
    }
}

/// The scale that an unscale or an update of this step names.
fn scale_of(events: &[ScalerEvent]) -> Option<f64> {
    events.iter().find_map(|event| match *event {
        ScalerEvent::Scaled { scale } | ScalerEvent::Unscaled { scale, .. } => Some(scale),
        ScalerEvent::Updated { from, .. } => Some(from),
        ScalerEvent::Stepped { .. } => None,
    })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".into())
}

/// A callback of the observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Callback {
    /// An operator begins.
    Start = 1,
    /// An operator has ended.
    End = 2,
    /// The gradient of an activation.
    Gradient = 3,
    /// Backward begins.
    Backward = 4,
    /// Our own scaler reports.
    Scaler = 5,
}

impl Callback {
    fn name(self) -> &'static str {
        match self {
            Callback::Start => "the operator start callback",
            Callback::End => "the operator end callback",
            Callback::Gradient => "the gradient hook",
            Callback::Backward => "the backward callback",
            Callback::Scaler => "the scaler listener",
        }
    }
}

/// What a test plants in a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// Nothing.
    Nothing,
    /// A Rust panic.
    Panic(Callback),
    /// A C++ exception; only the first three callbacks have C++ code of their own.
    Exception(Callback),
}

static PANIC_IN: AtomicU8 = AtomicU8::new(0);

/// Plants a failure, for the whole process.
pub(crate) fn plant(planted: Planted) {
    let (panic, exception) = match planted {
        Planted::Nothing => (0, 0),
        Planted::Panic(callback) => (callback as u8, 0),
        Planted::Exception(callback) => (0, callback as u8),
    };
    PANIC_IN.store(panic, Relaxed);
    // SAFETY: stores a number.
    unsafe { ampd_plant_exception(i32::from(exception)) };
}

fn panic_if_planted(callback: Callback) {
    assert!(PANIC_IN.load(Relaxed) != callback as u8, "planted panic");
}

/// The attachment behind a handle, while its doctor lives.
fn attachment(handle: *mut c_void) -> Option<Arc<Attachment>> {
    if handle.is_null() {
        return None;
    }
    // SAFETY: the handle came from `into_weak_handle` and was not yet released; the reference is not given back here.
    let weak = std::mem::ManuallyDrop::new(unsafe { Weak::from_raw(handle.cast::<Attachment>().cast_const()) });
    weak.upgrade()
}

/// # Safety
/// Called by the shim: `op` lives for the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn ampd_on_start(handle: *mut c_void, op: *const RawOp) -> c_int {
    // SAFETY: the shim's promise.
    let (Some(attachment), Some(op)) = (attachment(handle), (unsafe { op.as_ref() })) else { return 0 };
    let mut wanted = Wanted::default();
    attachment.enter(Callback::Start, |state| {
        if op.kind == RawOp::BACKWARD_NODE {
            state.backward_node(op);
        } else {
            wanted = state.operator_starts(op, events::inside_scaler());
        }
    });
    c_int::from(wanted.end) | c_int::from(wanted.remember) << 1
}

/// # Safety
/// Called by the shim: `op` lives for the call and `tokens` has a slot for each of its tensors.
#[unsafe(no_mangle)]
unsafe extern "C" fn ampd_on_end(handle: *mut c_void, op: *const RawOp, tokens: *mut u64) {
    // SAFETY: the shim's promise.
    let (Some(attachment), Some(op)) = (attachment(handle), (unsafe { op.as_ref() })) else { return };
    let count = op.tensors().len();
    let tokens = if tokens.is_null() || count == 0 {
        &mut []
    } else {
        // SAFETY: the shim's promise.
        unsafe { std::slice::from_raw_parts_mut(tokens, count) }
    };
    attachment.enter(Callback::End, |state| state.operator_ends(op, tokens));
}

#[unsafe(no_mangle)]
extern "C" fn ampd_on_backward(handle: *mut c_void) {
    let Some(attachment) = attachment(handle) else { return };
    attachment.enter(Callback::Backward, State::backward_starts);
}

#[unsafe(no_mangle)]
extern "C" fn ampd_on_compiled_graph(handle: *mut c_void) {
    let Some(attachment) = attachment(handle) else { return };
    attachment.enter(Callback::Backward, State::compiled_graph);
}

/// # Safety
/// Called by the shim: `gradient` lives for the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn ampd_on_gradient(handle: *mut c_void, token: u64, gradient: *const RawTensor) {
    // SAFETY: the shim's promise.
    let (Some(attachment), Some(gradient)) = (attachment(handle), (unsafe { gradient.as_ref() })) else { return };
    attachment.enter(Callback::Gradient, |state| state.gradient(token, gradient));
}

/// # Safety
/// Called by the shim: both texts are C strings that live for the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn ampd_on_failure(handle: *mut c_void, place: *const c_char, what: *const c_char) {
    let Some(attachment) = attachment(handle) else { return };
    // SAFETY: the shim's promise.
    let text = |c: *const c_char| if c.is_null() { "".into() } else { unsafe { CStr::from_ptr(c) }.to_string_lossy() };
    attachment.fail(&format!("a C++ exception in {}: {}", text(place), text(what)));
}

#[unsafe(no_mangle)]
extern "C" fn ampd_release_attachment(handle: *mut c_void) {
    if !handle.is_null() {
        // SAFETY: the handle came from `into_weak_handle`, and this is its one release.
        drop(unsafe { Weak::from_raw(handle.cast::<Attachment>().cast_const()) });
    }
}
