//! A character model: LSTM over one-hot characters, a linear head, gradients clipped by their norm, a sample now and then.
//!
//! `cargo run --release -p ampdoctor-torch --example char_lstm`
use tch::nn::{self, Module, OptimizerConfig, RNN};
use tch::{Device, Kind, Tensor};

const TEXT: &str = "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse, \
                    and nothing particular to interest me on shore, I thought I would sail about a little";
const SEQUENCE: i64 = 24;
const BATCH: i64 = 8;
const HIDDEN: i64 = 32;

/// Writes on from the first character, in grad mode, as people do.
fn sample(lstm: &nn::LSTM, linear: &nn::Linear, characters: &[char]) -> String {
    let mut state = lstm.zero_state(1);
    let mut last = 0;
    let mut text = String::new();
    for _ in 0..16 {
        let input = Tensor::zeros([1, characters.len() as i64], (Kind::Float, Device::Cpu));
        let _ = input.narrow(1, last, 1).fill_(1.0);
        state = lstm.step(&input, &state);
        let next = linear.forward(&state.h()).squeeze_dim(0).softmax(-1, Kind::Float).multinomial(1, false);
        last = next.int64_value(&[0]);
        text.push(characters[last as usize]);
    }
    text
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tch::manual_seed(2);
    tch::set_num_threads(1);
    let mut characters: Vec<char> = TEXT.chars().collect();
    characters.sort_unstable();
    characters.dedup();
    let numbers: Vec<i64> = TEXT.chars().map(|c| characters.binary_search(&c).unwrap() as i64).collect();
    let (text, labels) = (Tensor::from_slice(&numbers), characters.len() as i64);

    let vs = nn::VarStore::new(Device::Cpu);
    let lstm = nn::lstm(vs.root() / "lstm", labels, HIDDEN, Default::default());
    let linear = nn::linear(vs.root() / "head", HIDDEN, labels, Default::default());
    let mut opt = nn::Adam::default().build(&vs, 1e-2)?;

    let mut doctor = ampdoctor_torch::Doctor::attach(&vs); // ampdoctor: line one
    for epoch in 1..=4 {
        let mut sum = 0.0;
        for _ in 0..10 {
            let starts = Tensor::randint(text.size()[0] - SEQUENCE - 1, [BATCH], tch::kind::INT64_CPU);
            let starts = Vec::<i64>::try_from(starts)?;
            let rows = |shift| starts.iter().map(|s| text.narrow(0, s + shift, SEQUENCE)).collect::<Vec<_>>();
            let (xs, ys) = (Tensor::stack(&rows(0), 0).onehot(labels), Tensor::stack(&rows(1), 0));
            let (out, _) = lstm.seq(&xs);
            let logits = linear.forward(&out).view([BATCH * SEQUENCE, labels]);
            let loss = logits.cross_entropy_for_logits(&ys.view([BATCH * SEQUENCE]));
            opt.zero_grad();
            loss.backward();
            opt.clip_grad_norm(0.5);
            opt.step();
            doctor.step(&loss); // ampdoctor: line two
            sum += loss.double_value(&[]);
        }
        println!("epoch {epoch}, loss {:.3}, sample {:?}", sum / 10.0, sample(&lstm, &linear, &characters));
    }
    if let Some(path) = std::env::args().nth(1) {
        vs.save(path)?;
    }
    Ok(())
}
