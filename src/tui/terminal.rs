//! The terminal: taken over for the dashboard, given back whatever happens; and the signals that ask to end.

use std::io::{self, Stdout};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossterm::event::{self, KeyEventKind};
use crossterm::{cursor, execute, terminal};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, kill_current_process_group};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator;

use super::world::Event;

/// Whether the terminal is taken over now: the panic hook and the guard both look at it.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// How long the event loop may take to see a signal before the program ends without it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The terminal while the dashboard has it. Dropping it gives the terminal back.
pub struct Screen {
    /// What the dashboard draws on. Its own drop panics where the terminal has gone away; the guard does all that it would do.
    pub terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
}

impl Screen {
    /// Takes the terminal over. A panic gives it back before its message is printed.
    pub fn take() -> io::Result<Self> {
        static HOOK: std::sync::Once = std::sync::Once::new();
        HOOK.call_once(|| {
            let previous = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                previous(panic);
            }));
        });
        enter()?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout())).inspect_err(|_| give_back())?;
        Ok(Self { terminal: ManuallyDrop::new(terminal) })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn enter() -> io::Result<()> {
    TAKEN.store(true, Ordering::SeqCst);
    terminal::enable_raw_mode().inspect_err(|_| TAKEN.store(false, Ordering::SeqCst))?;
    execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide).inspect_err(|_| give_back())
}

/// Gives the terminal back, once. What fails is passed over: there is no screen left to say it on, and each step is tried.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), terminal::LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
    }
}

/// Gives the terminal back to the shell, stops the program as Ctrl-Z does, and takes the terminal again when it is continued.
pub fn suspend() -> io::Result<()> {
    give_back();
    let stopped = kill_current_process_group(Signal::TSTP);
    enter()?;
    stopped.map_err(io::Error::from)
}

/// The signals that ask the program to end, and the one that says it was continued.
pub struct Signals {
    asked: Arc<AtomicUsize>,
    continued: Arc<AtomicBool>,
    /// Whether the event loop is over: from then on a signal changes nothing any more.
    leaving: Arc<AtomicBool>,
}

impl Signals {
    /// Listens from now on.
    pub fn listen() -> io::Result<Self> {
        let (asked, continued) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            flag::register_usize(signal, asked.clone(), signal as usize)?;
        }
        flag::register(SIGCONT, continued.clone())?;
        let leaving = Arc::new(AtomicBool::new(false));
        stand_by(asked.clone(), leaving.clone())?;
        Ok(Self { asked, continued, leaving })
    }

    /// The event loop is over, and what is left to do is done in any case, stopping the command for one.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::SeqCst);
    }

    /// The signal that asked to end, once.
    pub fn asked(&self) -> Option<i32> {
        let signal = self.asked.swap(0, Ordering::SeqCst);
        (signal != 0).then_some(signal as i32)
    }
}

/// Ends the program on a signal that the event loop does not see in time: crossterm reads a terminal that has gone away forever,
/// and a write to one that was stopped with Ctrl-S does not return. The command, where there is one, goes on.
fn stand_by(asked: Arc<AtomicUsize>, leaving: Arc<AtomicBool>) -> io::Result<()> {
    let mut signals = iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let wait = move || {
        for signal in signals.forever() {
            std::thread::sleep(PATIENCE);
            if asked.load(Ordering::SeqCst) != 0 && !leaving.load(Ordering::SeqCst) {
                // The loop may hold standard output: then the terminal is past saving, and this must not wait for it.
                let given_back = std::thread::spawn(give_back);
                let until = Instant::now() + PATIENCE / 4;
                while !given_back.is_finished() && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(5));
                }
                std::process::exit(128 + signal);
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait)?;
    Ok(())
}

/// Where events come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The keys and sizes of a terminal, and signals.
    Terminal,
    /// Signals only.
    Signals,
}

/// The next event, waited for at most `timeout`.
pub fn next_event(input: Input, signals: &Signals, timeout: Duration) -> io::Result<Option<Event>> {
    if let Some(signal) = signals.asked() {
        return Ok(Some(Event::Signal(signal)));
    }
    match input {
        Input::Signals => {
            std::thread::sleep(timeout);
            Ok(signals.asked().map(Event::Signal))
        }
        Input::Terminal => next_terminal_event(signals, timeout),
    }
}

fn next_terminal_event(signals: &Signals, timeout: Duration) -> io::Result<Option<Event>> {
    if signals.continued.swap(false, Ordering::SeqCst) {
        // Stopped from outside: the shell may have changed the terminal meanwhile.
        enter()?;
        return Ok(Some(Event::Redraw));
    }
    // Waited for here and not in crossterm, which never returns once the terminal has gone away.
    for wait in [Duration::ZERO, timeout] {
        if has_hung_up(wait)? {
            return Ok(Some(Event::Signal(SIGHUP)));
        }
        if event::poll(Duration::ZERO)? {
            return read_terminal_event();
        }
    }
    Ok(None)
}

/// Whether nothing will come from the terminal any more. Waits at most this long for that or for a key; a signal ends the wait.
pub fn has_hung_up(wait: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    match poll(&mut fds, Some(&timeout)) {
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
        Ok(_) => Ok(fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)),
    }
}

fn read_terminal_event() -> io::Result<Option<Event>> {
    Ok(match event::read()? {
        event::Event::Key(key) if key.kind != KeyEventKind::Release => Some(Event::Key(key)),
        event::Event::Resize(..) => Some(Event::Redraw),
        _ => None,
    })
}
