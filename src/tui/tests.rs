//! The program itself, driven through scripts, and its screens.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::app::Exit;
use super::keys::BINDINGS;
use super::testing::scenario::{Fault, records, sites};
use super::testing::{Act, END_OF_SCRIPT, Script, app, play, screen, underflow};
use super::view::Theme;
use super::world::Command;
use crate::observation::{Probe, Record, Shadow, ShadowGradient, SiteId};
use crate::scan::Likeness;

const SMALL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (120, 40);
const ENTER: Act = Act::Key(KeyCode::Enter);

fn key(c: char) -> Act {
    Act::Key(KeyCode::Char(c))
}

/// A run of 120 steps that goes on.
fn live(fault: Fault) -> Vec<Act> {
    vec![Act::Write(records("demo", fault, 120, false)), Act::Wait(Duration::from_secs(1))]
}

/// The same, compared with FP32 before its last step: of a layer's weight a third was lost, and of the others nothing.
fn compared() -> Vec<Act> {
    let mut records = records("demo", Fault::Underflow("block.0.attn.qk"), 120, false);
    let whole = Likeness {
        count: 4096,
        nonzero: 3000,
        kept: 3000,
        dot: 1.0,
        energy: 1.0,
        fp32_energy: 1.0,
        magnitude: 30.0,
        fp32_magnitude: 30.0,
        ..Likeness::default()
    };
    let faded = Likeness { lost: 1000, kept: 2000, fading: 1900, dot: 0.7, energy: 0.8, lost_energy: 0.2, ..whole };
    let layers = sites().into_iter().enumerate().filter(|(_, site)| site.probe == Probe::ParamGrad);
    let gradients = layers.map(|(id, site)| {
        let likeness = if site.layer == "block.0.attn.qk" { faded } else { whole };
        ShadowGradient { site: SiteId(id as u32), likeness }
    });
    let shadow = Shadow {
        step: 119,
        loss_scale: Some(16384.0),
        loss: Some(0.433),
        time_ns: 31_000_000,
        gradients: gradients.collect(),
        ..Shadow::default()
    };
    records.insert(records.len() - 1, Record::Shadow(shadow));
    vec![Act::Write(records), Act::Wait(Duration::from_secs(1))]
}

fn then(mut acts: Vec<Act>, more: impl IntoIterator<Item = Act>) -> Vec<Act> {
    acts.extend(more);
    acts
}

#[test]
fn screens_at_both_sizes() {
    for (name, size) in [("80x24", SMALL), ("120x40", LARGE)] {
        let shot = |what: &str, text: String| insta::assert_snapshot!(format!("{what}_{name}"), text);
        shot("waiting", screen(size, vec![], []));
        shot("healthy", screen(size, vec![], live(Fault::None)));
        shot("underflow", screen(size, underflow(), live(Fault::Underflow("block.0.attn.qk"))));
        shot("nan", screen(size, vec![], live(Fault::Nan("block.0.attn.out"))));
        shot("help", screen(size, vec![], then(live(Fault::None), [key('?')])));
        shot("layer", screen(size, underflow(), then(live(Fault::Underflow("block.0.attn.qk")), [ENTER])));
        shot("layer_nan", screen(size, vec![], then(live(Fault::Nan("head")), [ENTER])));
        shot("layer_shadow", screen(size, underflow(), then(compared(), [ENTER])));
        shot("finding", screen(size, underflow(), then(live(Fault::None), [Act::Key(KeyCode::Tab), ENTER])));
        shot("whatif", screen(size, vec![], then(live(Fault::None), [key('w')])));
        shot("whatif_layers", screen(size, vec![], then(live(Fault::None), [key('w'), Act::Key(KeyCode::PageDown)])));
        shot("instrument", screen(size, vec![], then(live(Fault::None), [key('i')])));
        shot("activations", screen(size, vec![], then(live(Fault::None), [key('t'), key('s')])));
    }
}

#[test]
fn the_latest_comparison_with_fp32_stands_with_its_layer_and_only_where_there_was_one() {
    let at = |acts: Vec<Act>| screen((160, 80), vec![], then(acts, [ENTER]));
    let line = shown(&at(compared()), "against FP32");
    // The first layer of the table, of which nothing was lost: nothing was found, so none is above another.
    assert!(line.contains("against FP32 at step 119: cosine ") && line.contains("lost"), "{line}");
    assert!(!at(live(Fault::None)).contains("against FP32"));
}

#[test]
fn the_arrows_choose_the_scale_of_what_if() {
    let at = |keys: &[KeyCode]| {
        let acts = then(live(Fault::None), [key('w')].into_iter().chain(keys.iter().map(|code| Act::Key(*code))));
        shown(&screen((120, 100), vec![], acts), "Each layer at")
    };
    let (now, lower) = (at(&[]), at(&[KeyCode::Left, KeyCode::Left]));
    let exponent = |line: &str| line.split("2^").nth(1).and_then(|e| e.trim().parse::<i32>().ok()).expect("a scale");
    assert_eq!(exponent(&lower), exponent(&now) - 2, "{now}{lower}");
    assert_eq!(at(&[KeyCode::Left, KeyCode::Right]), now);
}

#[test]
fn small_screens_show_the_layer_too() {
    for (name, size) in [("40x12", (40, 12)), ("20x5", (20, 5))] {
        let acts = || live(Fault::Underflow("block.0.attn.qk"));
        insta::assert_snapshot!(format!("overview_{name}"), screen(size, underflow(), acts()));
        insta::assert_snapshot!(format!("layer_{name}"), screen(size, underflow(), then(acts(), [ENTER])));
    }
}

fn shown(text: &str, what: &str) -> String {
    text.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("no {what} in\n{text}")).to_owned()
}

/// Four ranks: the second loses its scale, the third stops early, the fourth makes a NaN.
fn four_ranks() -> Vec<Act> {
    let all = |fault| records("demo", fault, 120, false);
    let mut stopped = all(Fault::None);
    stopped.truncate(100);
    let acts = [
        Act::WriteRank(0, all(Fault::None)),
        Act::WriteRank(1, all(Fault::None)),
        Act::WriteRank(2, stopped),
        Act::WriteRank(3, all(Fault::Nan("block.0.attn.out"))),
        Act::Wait(Duration::from_secs(1)),
    ];
    acts.into()
}

#[test]
fn several_ranks_stand_in_the_header_and_on_a_page() {
    for (name, size) in [("80x24", SMALL), ("120x40", LARGE)] {
        let shot =
            |what: &str, acts| insta::assert_snapshot!(format!("{what}_{name}"), screen(size, underflow(), acts));
        shot("ranks_overview", four_ranks());
        shot("ranks_page", then(four_ranks(), [key('R')]));
        shot("ranks_layer", then(four_ranks(), [ENTER, key('m')]));
    }
}

#[test]
fn a_key_goes_from_rank_to_rank_and_round() {
    let after = |presses: usize| {
        let text = screen(SMALL, vec![], then(four_ranks(), (0..presses).map(|_| key('r'))));
        text.lines().next().expect("a header").split("  ").next().expect("a name").to_owned()
    };
    assert_eq!([after(0), after(1), after(3), after(4)], ["demo rank 3", "demo rank 0", "demo rank 2", "demo rank 3"]);
}

#[test]
fn one_rank_alone_is_not_spoken_of() {
    let text = screen(LARGE, vec![], live(Fault::None));
    assert!(!text.contains("rank"), "{text}");
    assert!(screen(LARGE, vec![], then(live(Fault::None), [key('R')])).contains("This run has one rank"));
    let layer = screen(LARGE, vec![], then(live(Fault::None), [ENTER, key('m')]));
    assert!(!layer.contains("all 1 ranks"), "{layer}");
}

#[test]
fn many_ranks_leave_out_those_that_have_nothing_to_say() {
    let mut acts: Vec<Act> =
        (0..64).map(|rank| Act::WriteRank(rank, records("demo", Fault::None, 20, false))).collect();
    acts.push(Act::WriteRank(70, records("demo", Fault::None, 3, true)));
    acts.push(Act::Wait(Duration::from_secs(1)));
    let text = screen(SMALL, vec![], acts);
    let line = shown(&text, "65 ranks");
    assert!(line.contains("70 W worst, ended at step 2, others went on") && line.contains("more: R"), "{line}");
    assert!(line.chars().count() <= 80, "{line}");
}

#[test]
fn tab_and_n_go_from_tensor_to_tensor_and_from_layer_to_layer() {
    let after = |keys: &[KeyCode]| {
        let acts = then(live(Fault::None), [ENTER]);
        screen(LARGE, vec![], then(acts, keys.iter().map(|&key| Act::Key(key))))
    };
    assert!(after(&[]).contains("linear grad out f16 x 2^14") || after(&[]).contains("conv2d grad out f16 x 2^14"));
    assert!(after(&[KeyCode::Tab]).contains("weight grad f32 x 2^14, latest 32 scans; what fp16 would hold"));
    assert!(after(&[KeyCode::Tab, KeyCode::BackTab, KeyCode::BackTab]).contains("conv2d output f16, latest"));
    let next = after(&[KeyCode::Tab, KeyCode::Char('n')]);
    assert!(shown(&next, "layer ").contains("conv2  2/6"), "{next}");
    assert!(next.contains("weight grad f32"), "the kind of tensor stays: {next}");
    assert!(shown(&after(&[KeyCode::Char('n'), KeyCode::Char('p')]), "layer ").contains("conv1  1/6"));
    assert!(shown(&after(&[KeyCode::Char('p')]), "layer ").contains("conv1  1/6"));
}

#[test]
fn the_exponents_are_of_the_latest_scans_or_of_the_whole_run() {
    let acts = || then(live(Fault::None), [ENTER]);
    let (latest, run) = (screen(SMALL, vec![], acts()), screen(SMALL, vec![], then(acts(), [key('t')])));
    assert!(latest.contains("latest 32 scans") && run.contains("all 116 scans"), "{run}");
    assert!(run.contains("exponents without the scans that were not finite"), "{run}");
}

#[test]
fn the_picture_that_is_held_can_be_walked_through() {
    let all = records("demo", Fault::None, 120, false);
    let (first, rest) = all.split_at(all.len() - 20);
    let wait = || Act::Wait(Duration::from_secs(1));
    let held = [Act::Write(first.to_vec()), wait(), key(' '), Act::Write(rest.to_vec()), wait(), ENTER, key('n')];
    let text = screen(LARGE, vec![], held);
    assert!(text.contains("held, 20 steps behind") && text.contains("layer conv2"), "{text}");
    let quantiles = shown(&text, "conv2d output largest");
    assert!(quantiles.contains(" 100 "), "what came after is not in it: {quantiles}");
}

#[test]
fn the_cursor_shows_the_numbers_of_a_step_and_leaves_at_the_end() {
    let after =
        |keys: &[KeyCode]| screen(SMALL, vec![], then(live(Fault::None), keys.iter().map(|&key| Act::Key(key))));
    let (left, right) = (KeyCode::Left, KeyCode::Right);
    let text = after(&[left, left]);
    assert!(shown(&text, "loss scale").contains("loss  step 115: 0.4"), "{text}");
    assert!(shown(&text, "loss scale").contains("step 115: 2^14") && text.contains('┊'), "{text}");
    assert!(shown(&after(&[left, left, KeyCode::Char('.')]), "loss scale").contains("step 116:"));
    assert!(shown(&after(&[left, KeyCode::Char(',')]), "loss scale").contains("step 116:"));
    assert!(!shown(&after(&[left, right, right]), "loss scale").contains("step 1"), "past the end there is no cursor");
    let to_the_start: Vec<KeyCode> = std::iter::repeat_n(left, 80).collect();
    assert!(shown(&after(&to_the_start), "loss scale").contains("step 0: 2^16, skipped"));
    assert!(!shown(&after(&[left, KeyCode::Esc]), "loss scale").contains("step 1"));
    let layer = after(&[left, left, KeyCode::Enter]);
    assert!(shown(&layer, "maxima").contains("maxima: step 115  a 192  g 1.50"), "{layer}");
}

#[test]
fn a_filter_is_written_kept_and_taken_away() {
    let type_in = |text: &str| text.chars().map(key).collect::<Vec<_>>();
    let filter = then(live(Fault::None), [key('/')]);
    let writing = screen(SMALL, vec![], then(filter.clone(), type_in("qk")));
    assert!(shown(&writing, "layers").contains("1/1 (5 hidden)  /qk_"), "{writing}");
    assert!(writing.contains("block.0.attn.qk") && !writing.contains("block.0.attn.out"), "{writing}");
    let kept = then(filter.clone(), type_in("qk").into_iter().chain([ENTER]));
    assert!(screen(SMALL, vec![], then(kept.clone(), [ENTER])).contains("layer block.0.attn.qk  1/1"));
    let gone = screen(SMALL, vec![], then(kept, [Act::Key(KeyCode::Esc)]));
    assert!(!gone.contains("/qk") && gone.contains("block.0.attn.out"), "{gone}");
    let none = screen(SMALL, vec![], then(filter, type_in("xyz")));
    assert!(none.contains("no layer named xyz; Esc shows all"), "{none}");
}

#[test]
fn only_layers_with_findings_can_be_shown() {
    let text = screen(SMALL, underflow(), then(live(Fault::None), [key('f')]));
    assert!(shown(&text, "layers").contains("1/2 (4 hidden)  f: with findings"), "{text}");
    assert!(text.contains("conv1") && !text.contains("conv2"), "{text}");
}

#[test]
fn the_selection_survives_a_filter_that_hides_it_and_a_new_order() {
    let select = then(live(Fault::None), [key('j'), key('j')]);
    let hidden = [key('/'), key('h'), key('e'), key('a'), key('d'), Act::Key(KeyCode::Esc), key('S'), ENTER];
    let text = screen(SMALL, vec![], then(select, hidden));
    assert!(shown(&text, "layer ").contains("block.0.attn.qk"), "{text}");
}

#[test]
fn a_letter_in_a_filter_is_no_command() {
    let acts = then(live(Fault::None), [key('/'), key('q'), key('?')]);
    let mut world = Script::new(acts);
    let (text, exit) = play(SMALL, Theme::PLAIN, &mut world);
    assert_eq!(exit, Exit::Signal(END_OF_SCRIPT));
    assert!(text.contains("/q?_"), "{text}");
    let mut world = Script::new(then(live(Fault::None), [key('/'), Act::Ctrl('c')]));
    assert_eq!(play(SMALL, Theme::PLAIN, &mut world).1, Exit::Quit);
}

#[test]
fn the_column_that_is_sorted_by_is_shown_where_there_is_little_room() {
    let sorted = [key('s'), key('s'), key('s'), key('s')];
    let text = screen(SMALL, vec![], then(live(Fault::None), sorted));
    assert!(shown(&text, "layers").contains("s: by least headroom") && text.contains(" room "), "{text}");
    assert!(text.lines().skip_while(|l| !l.contains("layers")).nth(2).is_some_and(|l| l.contains("head")), "{text}");
}

#[test]
fn without_unicode_every_character_is_ascii() {
    let ascii = Theme { colour: false, unicode: false };
    for more in [vec![], vec![key('?')], vec![ENTER], vec![key('i')], vec![key('w')]] {
        let mut world = Script { findings: underflow(), ..Script::new(then(live(Fault::Nan("head")), more)) };
        let (text, _) = play(SMALL, ascii, &mut world);
        assert!(text.is_ascii(), "{text}");
    }
    let mut world = Script { findings: underflow(), ..Script::new(live(Fault::Nan("head"))) };
    insta::assert_snapshot!("ascii_80x24", play(SMALL, ascii, &mut world).0);
}

#[test]
fn without_colour_no_cell_has_one() {
    let mut app = app(Theme::PLAIN, underflow());
    let mut world = Script::new(live(Fault::Nan("head")));
    let mut terminal = Terminal::new(TestBackend::new(SMALL.0, SMALL.1)).expect("a test terminal");
    app.show(&mut terminal, &mut world).expect("nothing fails");
    let coloured = terminal.backend().buffer().content.iter().filter(|cell| cell.fg != ratatui::style::Color::Reset);
    assert_eq!(coloured.count(), 0);
}

#[test]
fn a_problem_with_the_recording_is_said_and_the_rest_is_shown() {
    let acts = then(live(Fault::None), [Act::Problem("the recording is damaged in 2 places, 512 bytes were skipped")]);
    let text =
        screen(SMALL, vec![], then(acts, [Act::Wait(Duration::from_secs(1)), Act::Wait(Duration::from_secs(1))]));
    assert!(text.contains("damaged in 2 places"), "{text}");
    assert!(text.contains("block.0.fc"), "{text}");
}

#[test]
fn a_run_that_had_ended_is_shown_whole_at_once() {
    let mut world = Script::new([]);
    world.write(records("demo", Fault::None, 120, true));
    let (text, _) = play(SMALL, Theme::PLAIN, &mut world);
    assert!(text.contains("replay, ended") && text.contains("step 119"), "{text}");
}

#[test]
fn a_held_picture_stays_and_tells_how_far_it_is_behind() {
    let all = records("demo", Fault::None, 120, false);
    let (first, rest) = all.split_at(all.len() - 20);
    let wait = || Act::Wait(Duration::from_secs(1));
    let mut acts = vec![Act::Write(first.to_vec()), wait(), key(' '), Act::Write(rest.to_vec()), wait(), wait()];
    let text = screen(SMALL, vec![], acts.clone());
    assert!(text.contains("held, 20 steps behind") && text.contains("step 99"), "{text}");
    acts.extend([key(' '), wait()]);
    let text = screen(SMALL, vec![], acts);
    assert!(!text.contains("held") && text.contains("step 119"), "{text}");
}

#[test]
fn the_selected_layer_stays_selected_when_the_order_changes() {
    let acts = then(live(Fault::None), [key('j'), key('j'), key('s'), ENTER]);
    let before = screen(SMALL, vec![], then(live(Fault::None), [key('j'), key('j'), ENTER]));
    let after = screen(SMALL, vec![], acts);
    let title = |text: &str| text.lines().find(|l| l.contains("layer ")).map(str::to_owned);
    assert_eq!(title(&before), title(&after));
}

#[test]
fn quitting_asks_only_while_a_command_runs() {
    let exit = |acts: Vec<Act>| play(SMALL, Theme::FULL, &mut Script::new(acts)).1;
    let running = || vec![Act::Command(Command::Running), Act::Wait(Duration::from_secs(1)), key('q')];
    assert_eq!(exit(vec![key('q')]), Exit::Quit);
    assert_eq!(exit(vec![Act::Ctrl('c')]), Exit::Quit);
    assert_eq!(exit(running()), Exit::Signal(END_OF_SCRIPT));
    assert_eq!(exit(then(running(), [Act::Key(KeyCode::Esc)])), Exit::Signal(END_OF_SCRIPT));
    assert_eq!(exit(then(running(), [key('l')])), Exit::LeaveRunning);
    assert_eq!(exit(then(running(), [key('s')])), Exit::Stop);
    let ended = [Act::Command(Command::Ended(3)), Act::Wait(Duration::from_secs(1)), key('q')];
    assert_eq!(exit(then(running(), ended)), Exit::Quit);
    assert_eq!(exit(vec![Act::Signal(15)]), Exit::Signal(15));
}

#[test]
fn the_question_is_on_the_screen() {
    let acts = [Act::Command(Command::Running), Act::Wait(Duration::from_secs(1)), key('q')];
    insta::assert_snapshot!("quit_80x24", screen(SMALL, vec![], then(live(Fault::None), acts)));
}

#[test]
fn a_command_that_recorded_nothing_is_told_so() {
    let ended = [
        Act::Command(Command::Ended(1)),
        Act::Wait(Duration::from_secs(1)),
        key('o'),
        Act::Wait(Duration::from_secs(1)),
    ];
    let mut world = Script { printed: Some(vec!["ModuleNotFoundError".into()]), ..Script::new(ended) };
    let (text, _) = play(SMALL, Theme::PLAIN, &mut world);
    assert!(text.contains("recorded nothing") && text.contains("ModuleNotFoundError"), "{text}");
}

#[test]
fn help_names_every_key() {
    let text = screen((100, 60), vec![], [key('?')]);
    for binding in BINDINGS {
        assert!(text.contains(binding.label) && text.contains(binding.help), "{}", binding.label);
    }
}

fn any_key() -> impl Strategy<Value = KeyEvent> {
    let bound: Vec<KeyEvent> = BINDINGS
        .iter()
        .flat_map(|b| b.keys)
        .map(|&(code, ctrl)| KeyEvent::new(code, if ctrl { KeyModifiers::CONTROL } else { KeyModifiers::NONE }))
        .collect();
    prop_oneof![
        8 => prop::sample::select(bound),
        1 => any::<char>().prop_map(|c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn no_key_and_no_size_makes_it_panic(
        keys in prop::collection::vec((any_key(), 1u16..140, 1u16..50), 1..40),
        steps in 0u64..70,
        nan in any::<bool>(),
        unicode in any::<bool>(),
    ) {
        let fault = if nan { Fault::Nan("conv2") } else { Fault::Underflow("head") };
        let mut app = app(Theme { colour: true, unicode }, underflow());
        let mut world = Script { printed: Some(vec!["a line".into(); 100]), ..Script::default() };
        world.write(records("demo", fault, steps, false));
        for (key, width, height) in keys {
            app.read(&mut world).expect("nothing fails");
            app.press(key, &mut world).expect("nothing fails");
            app.refresh(&mut world);
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a test terminal");
            terminal.draw(|frame| app.draw(frame)).expect("drawn");
        }
    }
}

#[test]
fn what_follows_from_a_finding_stands_under_it_and_on_its_own_layer() {
    let mut found = underflow();
    let mut follower = found.remove(1);
    follower.layer = "head".into();
    found[0].consequences.push(follower);
    let text = screen(LARGE, found.clone(), live(Fault::None));
    assert!(text.contains("1 error  1 more that follow"), "{text}");
    assert!(text.contains("follows: W AMP201 gradient-underflow  head"), "{text}");
    let page = screen(LARGE, found.clone(), then(live(Fault::None), [Act::Key(KeyCode::Tab), ENTER]));
    assert!(page.contains("What follows from it"), "{page}");
    let head = (0..6)
        .map(|n| screen(LARGE, found.clone(), then(live(Fault::None), [vec![key('j'); n], vec![ENTER]].concat())));
    assert!(head.into_iter().any(|layer| layer.contains("follows from: AMP201 gradient-underflow")));
}
