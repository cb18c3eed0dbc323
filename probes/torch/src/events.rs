//! How the loss scaler and master weights tell a doctor on the same thread what they do.
//!
//! A listener is held weakly: dropping it ends the listening, from whatever thread. Nobody listening costs one
//! thread-local read. A listener may scale, listen or be dropped while it is called, and one that panics is not called again:
//! whoever watches a run never ends it.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, Weak};

use ampdoctor::observation::{Refusal, ScalerConfig, ScalerEvent};
use tch::Tensor;
use tch::nn::Variables;

/// What a scaler says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Signal {
    /// Its settings: before its first event, after they changed, and again when a listener has joined since.
    Config(ScalerConfig),
    /// Something it did.
    Event(ScalerEvent),
    /// A call that it refused, before the error is returned.
    Refused(Refused),
    /// A step that it withheld, of these parameters: before the event.
    Withheld(Withheld),
    /// A model has master weights: when they are made, and again to a listener that joins later.
    Masters(Masters),
}

/// A call that a scaler refused.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    /// Number of the optimizer; `None` where the call concerns none.
    pub optimizer: Option<u32>,
    pub refusal: Refusal,
    /// The parameters concerned, where it is some of them.
    pub parameters: Rc<Vec<Tensor>>,
}

impl PartialEq for Refused {
    /// Whether it is the same refusal, over as many parameters.
    fn eq(&self, other: &Refused) -> bool {
        let key = |r: &Refused| (r.optimizer, r.refusal, r.parameters.len());
        key(self) == key(other)
    }
}

/// The parameters of an optimizer whose step a scaler withheld.
#[derive(Clone, Debug)]
pub(crate) struct Withheld(pub Rc<Vec<Tensor>>);

impl PartialEq for Withheld {
    /// Whether there are as many.
    fn eq(&self, other: &Withheld) -> bool {
        self.0.len() == other.0.len()
    }
}

/// The variables of a model, and those of its FP32 copies.
#[derive(Clone, Debug)]
pub(crate) struct Masters {
    pub model: Arc<Mutex<Variables>>,
    pub copies: Arc<Mutex<Variables>>,
}

impl PartialEq for Masters {
    /// Whether they are the same variables.
    fn eq(&self, other: &Masters) -> bool {
        Arc::ptr_eq(&self.model, &other.model) && Arc::ptr_eq(&self.copies, &other.copies)
    }
}

/// Master weights that were made on this thread, held weakly.
type MadeMasters = (Weak<Mutex<Variables>>, Weak<Mutex<Variables>>);

/// Who hears the scalers of a thread.
pub(crate) trait Listener {
    /// Called on the training thread, inside the scaler's call.
    fn hear(&self, signal: &Signal);
}

thread_local! {
    static LISTENERS: RefCell<Vec<Weak<dyn Listener>>> = const { RefCell::new(Vec::new()) };
    static MASTERS: RefCell<Vec<MadeMasters>> = const { RefCell::new(Vec::new()) };
    static GENERATION: Cell<u64> = const { Cell::new(0) };
    static INSIDE_SCALER: Cell<bool> = const { Cell::new(false) };
}

/// Lets `listener` hear every scaler of this thread, for as long as somebody holds it.
pub(crate) fn listen(listener: Weak<dyn Listener>) {
    let _ = LISTENERS.try_with(|listeners| listeners.borrow_mut().push(listener));
    let _ = GENERATION.try_with(|generation| generation.set(generation.get() + 1));
}

/// Grows with every listener that joins on this thread; 0 before the first. A scaler that sees it grown tells its settings again.
pub(crate) fn generation() -> u64 {
    GENERATION.try_with(Cell::get).unwrap_or(0)
}

/// Tells an event to whoever listens on this thread.
pub(crate) fn emit(event: ScalerEvent) {
    tell(|| Signal::Event(event));
}

/// Tells a refused call to whoever listens on this thread.
pub(crate) fn emit_refusal(optimizer: Option<u32>, refusal: Refusal, parameters: &[Tensor]) {
    let refused =
        || Refused { optimizer, refusal, parameters: Rc::new(parameters.iter().map(Tensor::shallow_clone).collect()) };
    tell(|| Signal::Refused(refused()));
}

/// Tells whoever listens on this thread that the step of these parameters is withheld.
pub(crate) fn emit_withheld(parameters: &[Tensor]) {
    tell(|| Signal::Withheld(Withheld(Rc::new(parameters.iter().map(Tensor::shallow_clone).collect()))));
}

/// Tells a scaler's settings to whoever listens on this thread.
pub(crate) fn emit_config(config: &ScalerConfig) {
    tell(|| Signal::Config(config.clone()));
}

/// Remembers, for whoever listens later, that a model has copies.
pub(crate) fn remember_masters(masters: &Masters) {
    let made = (Arc::downgrade(&masters.model), Arc::downgrade(&masters.copies));
    let _ = MASTERS.try_with(|all| all.borrow_mut().push(made));
}

/// The master weights made on this thread whose model and copies both live.
pub(crate) fn living_masters() -> Vec<Masters> {
    let alive = |all: &RefCell<Vec<MadeMasters>>| {
        let mut all = all.borrow_mut();
        all.retain(|(model, copies)| model.strong_count() > 0 && copies.strong_count() > 0);
        all.iter()
            .filter_map(|(model, copies)| Some(Masters { model: model.upgrade()?, copies: copies.upgrade()? }))
            .collect()
    };
    MASTERS.try_with(alive).unwrap_or_default()
}

/// Tells whoever listens on this thread which copies a model has.
pub(crate) fn emit_masters(masters: &Masters) {
    tell(|| Signal::Masters(masters.clone()));
}

/// Runs a closure during which [`inside_scaler`] is true: the `_amp_*` operators within are our own scaler's.
pub(crate) fn as_scaler<T>(body: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = INSIDE_SCALER.try_with(|inside| inside.set(self.0));
        }
    }
    let _restore = Restore(INSIDE_SCALER.try_with(|inside| inside.replace(true)).unwrap_or(false));
    body()
}

/// Whether an operator that is running now on this thread was called by our own scaler, which reports its events itself: an observer
/// need not take it for a foreign one.
pub(crate) fn inside_scaler() -> bool {
    INSIDE_SCALER.try_with(Cell::get).unwrap_or(false)
}

fn tell(signal: impl FnOnce() -> Signal) {
    if crate::shadow::is_on() {
        return;
    }
    let listeners = current();
    if listeners.is_empty() {
        return;
    }
    let signal = signal();
    for listener in listeners {
        // The listener reports its own failures; here it only must not reach the training loop.
        if catch_unwind(AssertUnwindSafe(|| listener.hear(&signal))).is_err() {
            forget(&listener);
        }
    }
}

/// The listeners still alive. The list is not borrowed while they are called, so they may change it.
fn current() -> Vec<Arc<dyn Listener>> {
    let alive = |listeners: &RefCell<Vec<Weak<dyn Listener>>>| {
        let mut listeners = listeners.borrow_mut();
        let alive: Vec<_> = listeners.iter().filter_map(Weak::upgrade).collect();
        if alive.len() < listeners.len() {
            listeners.retain(|listener| listener.strong_count() > 0);
        }
        alive
    };
    LISTENERS.try_with(alive).unwrap_or_default()
}

fn forget(listener: &Arc<dyn Listener>) {
    let address = Arc::as_ptr(listener).cast::<()>();
    let _ =
        LISTENERS.try_with(|listeners| listeners.borrow_mut().retain(|other| other.as_ptr().cast::<()>() != address));
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Keeps everything that the scalers of this thread say.
    #[derive(Default)]
    pub(crate) struct Heard(RefCell<Vec<Signal>>);

    impl Heard {
        /// A listener that listens from now on.
        // Nothing here leaves the thread; the registry asks for an Arc.
        #[allow(clippy::arc_with_non_send_sync)]
        pub(crate) fn listening() -> Arc<Heard> {
            let heard = Arc::new(Heard::default());
            let weak: Weak<Heard> = Arc::downgrade(&heard);
            listen(weak);
            heard
        }

        /// What was heard since the last call.
        pub(crate) fn take(&self) -> Vec<Signal> {
            self.0.take()
        }

        /// The events among what was heard since the last call.
        pub(crate) fn events(&self) -> Vec<ScalerEvent> {
            let event = |signal| if let Signal::Event(event) = signal { Some(event) } else { None };
            self.take().into_iter().filter_map(event).collect()
        }
    }

    impl Listener for Heard {
        fn hear(&self, signal: &Signal) {
            self.0.borrow_mut().push(signal.clone());
        }
    }
}

#[cfg(test)]
#[allow(clippy::arc_with_non_send_sync)]
mod tests {
    use super::testing::Heard;
    use super::*;

    const EVENT: ScalerEvent = ScalerEvent::Stepped { optimizer: 0, applied: true };

    #[test]
    fn a_listener_hears_until_it_is_dropped() {
        emit(EVENT);
        let heard = Heard::listening();
        emit(EVENT);
        assert_eq!(heard.events(), [EVENT]);
        drop(heard);
        emit(EVENT);
        assert!(LISTENERS.with_borrow(Vec::is_empty));
    }

    #[test]
    fn another_thread_is_not_heard() {
        let heard = Heard::listening();
        std::thread::spawn(|| emit(EVENT)).join().unwrap();
        assert_eq!(heard.take(), []);
    }

    #[test]
    fn a_listener_may_emit_and_listen_while_it_hears() {
        struct Echo(Cell<u32>);
        impl Listener for Echo {
            fn hear(&self, _: &Signal) {
                self.0.set(self.0.get() + 1);
                if self.0.get() < 3 {
                    listen(Weak::<Heard>::new());
                    emit(EVENT);
                }
            }
        }
        let echo = Arc::new(Echo(Cell::new(0)));
        let weak: Weak<Echo> = Arc::downgrade(&echo);
        listen(weak);
        emit(EVENT);
        assert_eq!(echo.0.get(), 3);
    }

    #[test]
    fn a_listener_that_panics_is_heard_of_once_and_the_others_go_on() {
        struct Faulty(Cell<u32>);
        impl Listener for Faulty {
            fn hear(&self, _: &Signal) {
                self.0.set(self.0.get() + 1);
                panic!("planted: this message in the test's output is expected");
            }
        }
        let faulty = Arc::new(Faulty(Cell::new(0)));
        let weak: Weak<Faulty> = Arc::downgrade(&faulty);
        listen(weak);
        let heard = Heard::listening();
        emit(EVENT);
        emit(EVENT);
        assert_eq!((faulty.0.get(), heard.events().len()), (1, 2));
    }

    #[test]
    fn every_new_listener_grows_the_generation() {
        let before = generation();
        let _heard = Heard::listening();
        assert_eq!(generation(), before + 1);
    }

    #[test]
    fn our_own_operators_are_marked_even_when_nested() {
        assert!(!inside_scaler());
        as_scaler(|| {
            as_scaler(|| assert!(inside_scaler()));
            assert!(inside_scaler());
        });
        assert!(!inside_scaler());
    }
}
