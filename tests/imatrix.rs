//! `cuelight imatrix`: its sums are those of a plain reference, and `cuelight quantize` uses them.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

use cuelight_engine::format::gguf::{Gguf, Metadata};
use cuelight_engine::load::{LoadOptions, plan};
use cuelight_engine::perplexity::{Scored, Text};
use cuelight_engine::quantize::ImportanceMatrix;

const WINDOW: usize = 24;

/// A folder with a text.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Folder(tempfile::tempdir().unwrap());
        let license = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("LICENSE-MIT")).unwrap();
        std::fs::write(folder.path("text.txt"), &license[..300]).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The exit code, and what was written to standard output and to standard error.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuelight"));
        command.args(arguments).env_clear().env("HOME", self.0.path()).env("CUELIGHT_CALIBRATE", "off");
        command.env("CUELIGHT_KV_TYPE", "f32").current_dir(self.0.path()).stdin(Stdio::null());
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// Measures a model, in windows of 24 tokens.
    fn measure(&self, model: &Path, output: &str, more: &[&str]) -> String {
        let arguments = ["imatrix", model.to_str().unwrap(), "text.txt", "-o", output, "-c", "24"];
        let (code, printed, error) = self.run(&[&arguments, more].concat());
        assert_eq!(code, Some(0), "{error}");
        printed
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/families").join(name)
}

/// Sums of squares [matrices][columns], and the number of rows of each matrix.
type Sums = BTreeMap<String, Vec<(Vec<f64>, u64)>>;

/// The family `llama` in float64, one row after the other, with dense feed-forwards or with experts.
struct Plain {
    gguf: Gguf,
    weights: HashMap<String, Rc<[f64]>>,
    sums: Sums,
}

impl Plain {
    fn number(&self, key: &str) -> usize {
        self.gguf.u32(&format!("llama.{key}")).unwrap() as usize
    }

    fn values(&mut self, tensor: &str) -> Rc<[f64]> {
        let read = || self.gguf.weight(tensor).unwrap().to_f32().into_iter().map(f64::from).collect();
        self.weights.entry(tensor.to_owned()).or_insert_with(read).clone()
    }

    fn observe(&mut self, tensor: &str, (matrix, matrices): (usize, usize), x: &[f64]) {
        let empty = || vec![(vec![0.0; x.len()], 0); matrices];
        let (squares, count) = &mut self.sums.entry(tensor.to_owned()).or_insert_with(empty)[matrix];
        squares.iter_mut().zip(x).for_each(|(square, x)| *square += x * x);
        *count += 1;
    }

    /// The product of a row with a matrix, which is observed.
    fn multiply(&mut self, tensor: &str, of: (usize, usize), x: &[f64]) -> Vec<f64> {
        self.observe(tensor, of, x);
        let values = self.values(tensor);
        let matrix = &values[of.0 * values.len() / of.1..][..values.len() / of.1];
        matrix.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }

    fn norm(&mut self, tensor: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let epsilon = f64::from(self.gguf.f32("llama.attention.layer_norm_rms_epsilon").unwrap());
        x.iter().zip(&*self.values(tensor)).map(|(x, w)| x * w / (mean + epsilon).sqrt()).collect()
    }

    /// Rotates the pairs of each head by its position.
    fn rotate(&self, x: &mut [f64], position: usize) {
        let dim = self.number("rope.dimension_count");
        for head in x.chunks_exact_mut(dim) {
            for (index, pair) in head.chunks_exact_mut(2).enumerate() {
                let angle = position as f64 * 10_000f64.powf(-2.0 * index as f64 / dim as f64);
                let (a, b) = (pair[0], pair[1]);
                (pair[0], pair[1]) = (a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos());
            }
        }
    }

    fn window(&mut self, tokens: &[u32]) {
        let hidden = self.number("embedding_length");
        let table = self.values("token_embd.weight");
        let mut rows: Vec<Vec<f64>> =
            tokens.iter().map(|token| table[*token as usize * hidden..][..hidden].to_vec()).collect();
        for layer in 0..self.number("block_count") {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for (position, row) in rows.iter_mut().enumerate() {
                let mixed = self.attention(layer, position, row, (&mut keys, &mut values));
                row.iter_mut().zip(mixed).for_each(|(x, y)| *x += y);
                let fed = self.feed_forward(layer, row);
                row.iter_mut().zip(fed).for_each(|(x, y)| *x += y);
            }
        }
    }

    fn attention(
        &mut self,
        layer: usize,
        position: usize,
        x: &[f64],
        (keys, values): (&mut Vec<Vec<f64>>, &mut Vec<Vec<f64>>),
    ) -> Vec<f64> {
        let name = |part: &str| format!("blk.{layer}.attn_{part}.weight");
        let x = self.norm(&name("norm"), x);
        let [mut q, mut k, v] = ["q", "k", "v"].map(|part| self.multiply(&name(part), (0, 1), &x));
        self.rotate(&mut q, position);
        self.rotate(&mut k, position);
        keys.push(k);
        values.push(v);
        let (heads, kv_heads) = (self.number("attention.head_count"), self.number("attention.head_count_kv"));
        let dim = q.len() / heads;
        let mut mixed = Vec::new();
        for (head, q) in q.chunks_exact(dim).enumerate() {
            let at = head / (heads / kv_heads) * dim;
            let score = |k: &Vec<f64>| q.iter().zip(&k[at..]).map(|(q, k)| q * k).sum::<f64>() / (dim as f64).sqrt();
            let weights: Vec<f64> = keys.iter().map(|k| score(k).exp()).collect();
            let total: f64 = weights.iter().sum();
            mixed.extend(
                (at..at + dim).map(|i| values.iter().zip(&weights).map(|(v, w)| v[i] * w / total).sum::<f64>()),
            );
        }
        self.multiply(&name("output"), (0, 1), &mixed)
    }

    fn feed_forward(&mut self, layer: usize, x: &[f64]) -> Vec<f64> {
        let x = self.norm(&format!("blk.{layer}.ffn_norm.weight"), x);
        let Ok(experts) = self.gguf.u32("llama.expert_count") else {
            return self.gated(layer, "", (0, 1), &x);
        };
        let logits = self.multiply(&format!("blk.{layer}.ffn_gate_inp.weight"), (0, 1), &x);
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        order.truncate(self.number("expert_used_count"));
        let total: f64 = order.iter().map(|expert| logits[*expert].exp()).sum();
        let mut sum = vec![0.0; x.len()];
        for expert in order {
            let y = self.gated(layer, "_exps", (expert, experts as usize), &x);
            sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += y * logits[expert].exp() / total);
        }
        sum
    }

    fn gated(&mut self, layer: usize, ending: &str, of: (usize, usize), x: &[f64]) -> Vec<f64> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}{ending}.weight");
        let [gate, up] = ["gate", "up"].map(|part| self.multiply(&name(part), of, x));
        let inner: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
        self.multiply(&name("down"), of, &inner)
    }
}

/// What the reference finds for the text, and the number of its windows.
fn expected(model: &Path, text: &str) -> (Sums, usize) {
    let tokenizer = plan(&LoadOptions::new(model)).unwrap().load(&mut |_| {}).unwrap().tokenizer;
    let windows = Text::new(&tokenizer, text).unwrap().windows(WINDOW, Scored::All).unwrap();
    let mut plain = Plain { gguf: Gguf::open(model).unwrap(), weights: HashMap::new(), sums: Sums::new() };
    windows.iter().for_each(|window| plain.window(&window.tokens));
    (plain.sums, windows.len())
}

#[test]
fn the_sums_are_those_of_a_plain_reference() {
    for name in ["llama.gguf", "mixtral.gguf"] {
        let (folder, model) = (Folder::new(), fixture(name));
        let text = std::fs::read_to_string(folder.path("text.txt")).unwrap();
        let (expected, windows) = expected(&model, &text);
        let printed = folder.measure(&model, "out.gguf", &[]);
        assert!(printed.contains(&format!("{} tensors, {windows} windows", expected.len())), "{printed}");
        let file = Gguf::open(folder.path("out.gguf")).unwrap();
        assert_eq!(file.u32("imatrix.chunk_count").unwrap() as usize, windows, "{name}");
        assert_eq!(file.u32("imatrix.chunk_size").unwrap() as usize, WINDOW, "{name}");
        assert_eq!(file.tensors().len(), 2 * expected.len(), "{name}");
        for (tensor, matrices) in &expected {
            let sums = file.weight(&format!("{tensor}.in_sum2")).unwrap();
            let counts = file.weight(&format!("{tensor}.counts")).unwrap().to_f32();
            let found = sums.to_f32();
            assert_eq!((sums.rows, counts.len()), (matrices.len(), matrices.len()), "{tensor}");
            for ((found, (squares, count)), counted) in found.chunks_exact(sums.columns).zip(matrices).zip(counts) {
                assert_eq!(counted, *count as f32, "{tensor}");
                let scale = squares.iter().sum::<f64>() / squares.len() as f64;
                for (found, square) in found.iter().zip(squares) {
                    let error = (f64::from(*found) - square).abs() / (square + 0.01 * scale + 1e-9);
                    assert!(error < 1e-4, "{tensor}: {found}, but {square} was expected");
                }
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit_and_windows_are_limited() {
    let (folder, model) = (Folder::new(), fixture("mixtral.gguf"));
    folder.measure(&model, "one.gguf", &["-t", "1", "--chunks", "2"]);
    folder.measure(&model, "two.gguf", &["-t", "2", "--chunks", "2"]);
    let bytes = |name| std::fs::read(folder.path(name)).unwrap();
    assert!(bytes("one.gguf") == bytes("two.gguf"), "the files differ");
    assert_eq!(Gguf::open(folder.path("one.gguf")).unwrap().u32("imatrix.chunk_count").unwrap(), 2);
}

#[test]
fn quantize_uses_the_file() {
    let (folder, model) = (Folder::new(), fixture("mixtral.gguf"));
    folder.measure(&model, "im.gguf", &[]);
    let importance = ImportanceMatrix::open(&folder.path("im.gguf")).unwrap();
    assert_eq!(importance.of("blk.1.ffn_down_exps.weight", 3).unwrap().len(), 96);
    assert!(importance.of("output.weight", 0).is_none());
    let model = model.to_str().unwrap();
    let quantize = |out: &str, more: &[&str]| {
        let (code, _, error) = folder.run(&[&["quantize", model, out, "q4_0"], more].concat());
        assert_eq!(code, Some(0), "{error}");
        std::fs::read(folder.path(out)).unwrap()
    };
    let with = quantize("with.gguf", &["--imatrix", "im.gguf"]);
    assert_ne!(with.len(), 0);
    assert_ne!(quantize("without.gguf", &[])[with.len() / 2..], with[with.len() / 2..]);
}

#[test]
fn wrong_input_is_refused_and_leaves_no_file() {
    let (folder, model) = (Folder::new(), fixture("llama.gguf"));
    let model = model.to_str().unwrap();
    let reordered = fixture("../quantized_directories/llama-gptq-order");
    let reordered = reordered.to_str().unwrap();
    std::fs::write(folder.path("short.txt"), "Hello there.").unwrap();
    std::fs::write(folder.path("binary.txt"), [b'a', 0xff, b'b']).unwrap();
    std::fs::write(folder.path("taken.gguf"), "mine").unwrap();
    for (arguments, part) in [
        (&[model, "short.txt", "-o", "out.gguf"][..], "but a window needs 512"),
        (&[model, "binary.txt", "-o", "out.gguf"], "is not UTF-8 text (at byte 1)"),
        (&[model, "none.txt", "-o", "out.gguf"], "cannot read the text none.txt"),
        (&[model, "text.txt", "-o", "taken.gguf"], "taken.gguf exists"),
        (&[reordered, "text.txt", "-o", "out.gguf"], "reorders the columns of its matrix"),
        (&[model, "text.txt", "-o", "no/such/out.gguf", "-c", "24"], "cannot write no/such/out.gguf"),
        (&["./none.gguf", "text.txt", "-o", "out.gguf"], "no such file"),
    ] {
        let (code, _, error) = folder.run(&[&["imatrix"], arguments].concat());
        assert!(code == Some(1) && error.contains(part), "{arguments:?}: {error}");
        assert!(!folder.path("out.gguf").exists());
    }
    assert_eq!(std::fs::read(folder.path("taken.gguf")).unwrap(), b"mine");
}
