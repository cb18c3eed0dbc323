//! `docs/loops.md`: a row for each loop, held by the test that runs it. `AMPDOCTOR_RENEW=1` writes what the tests would accept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

const HEAD: &str = "\
# Loops that the doctor was attached to

Each of these is an example of `ampdoctor-torch`, written as people write their tch programs, with two lines added that are marked `// ampdoctor: line one` and
`// ampdoctor: line two`; `cargo run --release -p ampdoctor-torch --example gpt` runs one. `make test` runs each with a doctor that scans every step and again
without one (`AMPDOCTOR=off`), and holds that

* the weights are the same, bit for bit, and so is what the program prints;
* nothing is found: these runs are well;
* of the model is seen what stands here, and what is not seen is said in the report; a parameter that has a gradient at a step has an update at it too, unless a scaler
  withheld that, and its layer has an activation and the gradient of one.

*Parameters*: how many of the trainable parameters were seen with their gradient and their update. *Layers*: how many of the layers that have such parameters were
seen with an activation and its gradient. Two numbers are two recordings.

| loop | what is in it | parameters | layers | blind spots |
|---|---|---|---|---|
";

const TAIL: &str = "
## Blind spots that are inherent

The report names each under the run that has it, with the reason.

* **A TorchScript module** is compiled by LibTorch after its first call; autograd then follows whole graphs and not the operators in them, so there is nothing to hang a
  gradient's hook on. What the operators compute is still seen, and so are the gradients and updates of all parameters. `tch::jit::set_graph_executor_optimize(false)` before
  the first call leaves the module interpreted, and all of it is seen. tch puts the parameters of such a module into the VarStore, and not its buffers: the running statistics
  of its batch norms are not seen. It also names `fc1.weight` there `fc1_weight`, which is why the module is one layer, the root.
* **A tensor that takes the place of a parameter** (`w = (w - grad * lr).detach().set_requires_grad(true)`) is another tensor: a doctor that was attached to plain tensors follows
  those that are changed in place (`w -= grad * lr`). The report then misses the update of the old one.
* **A model that the doctor was not attached to** is not observed. The report says so where something changes its parameters in place.
* **Operators on a thread of the user's own** are seen where the doctor was attached or last stepped, and nowhere else. Each thread that trains a model has a doctor of its own; where `AMPDOCTOR_RUN`
  is `run`, the second records in `run/process-<its number>` and says so. `ampdoctor check -- COMMAND` judges both, and the worst counts.

These loops ran on a CPU; none of them has run on a GPU yet.
";

static ALONE: Mutex<()> = Mutex::new(());

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/loops.md")
}

/// What an example says of itself in its first line.
fn sentence(name: &str) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name).with_extension("rs");
    let source = fs::read_to_string(source).expect("the example's source");
    source.lines().next().and_then(|line| line.strip_prefix("//! ")).expect("a first line of documentation").to_owned()
}

/// The rows of the page by loop.
fn rows(page: &str) -> BTreeMap<String, String> {
    let name = |row: &&str| row.strip_prefix("| [`")?.split_once('`').map(|(name, _)| name.to_owned());
    page.lines().filter_map(|row| Some((name(&row)?, row.to_owned()))).collect()
}

fn render(rows: &BTreeMap<String, String>) -> String {
    let rows: String = rows.values().map(|row| format!("{row}\n")).collect();
    format!("{HEAD}{rows}{TAIL}")
}

fn renews() -> bool {
    env::var_os("AMPDOCTOR_RENEW").is_some()
}

/// Holds the row of one loop; `cells` are those behind the sentence.
pub fn hold(name: &str, cells: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let row = format!("| [`{name}`](../probes/torch/examples/{name}.rs) | {} {cells}", sentence(name));
    let page = fs::read_to_string(path()).unwrap_or_default();
    let mut rows = rows(&page);
    if renews() {
        rows.insert(name.to_owned(), row);
        fs::write(path(), render(&rows)).expect("the page is written");
    } else {
        assert_eq!(
            rows.get(name),
            Some(&row),
            "docs/loops.md is stale: AMPDOCTOR_RENEW=1 cargo test --release -p ampdoctor-torch --test examples"
        );
    }
}

/// Holds that the page has a row for each of these loops and no other, and the text around them.
pub fn hold_the_rest(names: &[&str]) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let page = fs::read_to_string(path()).unwrap_or_default();
    let mut rows = rows(&page);
    if renews() {
        rows.retain(|name, _| names.contains(&name.as_str()));
        fs::write(path(), render(&rows)).expect("the page is written");
    } else {
        assert_eq!(rows.keys().map(String::as_str).collect::<Vec<_>>(), names, "docs/loops.md");
        assert_eq!(page, render(&rows), "docs/loops.md: the text around the table");
    }
}
