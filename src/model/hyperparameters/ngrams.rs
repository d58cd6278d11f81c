//! The embeddings of n-grams, which one layer adds to all streams.

use cuelight_shaders::causal_conv::CausalConv;
use cuelight_shaders::embed_ngrams::{LONGEST_NGRAM, MOST_TOKENS, NgramHash};

use super::keys::Keys;
use super::recurrent::WIDEST_CONVOLUTION;
use crate::model::error::ModelError;
use crate::model::layer::{LayerSpec, MixerSpec, NgramSpec, StreamSizes};

/// The key with the layers that add embeddings of n-grams.
const LAYERS: &str = "ple.layers";

/// The key with the tokens of the longest n-gram.
const LONGEST: &str = "ple.ngram_size";

/// Most heads of all lengths. A larger number means a damaged file.
const MOST_HEADS: usize = 4096;

impl Keys<'_> {
    /// Whether a layer adds embeddings of n-grams. The table of the inputs of layers is then that of n-grams.
    pub(super) fn has_ngrams(&self) -> Result<bool, ModelError> {
        Ok(self.checkpoint.optional_integers(&self.name(LAYERS))?.is_some_and(|layers| !layers.is_empty()))
    }

    /// The embeddings of n-grams of a model with these layers, this vocabulary and these streams.
    pub(super) fn ngrams(
        &self,
        layers: &[LayerSpec],
        vocab_size: usize,
        streams: Option<StreamSizes>,
    ) -> Result<Option<NgramSpec>, ModelError> {
        if !self.has_ngrams()? {
            return Ok(None);
        }
        if streams.is_none() {
            return Err(self.missing("hyper_connection.count"));
        }
        if vocab_size >= MOST_TOKENS {
            return Err(self.invalid(
                LAYERS,
                format!("not empty with {vocab_size} tokens"),
                "empty for a vocabulary of this size",
            ));
        }
        let (layer, hash) = (self.ngram_layer(layers)?, self.ngram_hash(vocab_size)?);
        let conv_width = self.conv_width("ple.conv_kernel")?;
        let spanned = CausalConv::spanned((conv_width, hash.multipliers.len()));
        if spanned > WIDEST_CONVOLUTION {
            let expected = format!("smaller: it spans {spanned} rows of at most {WIDEST_CONVOLUTION}");
            return Err(self.invalid("ple.conv_kernel", conv_width, expected));
        }
        let columns = self.size("embedding_length_per_layer_input")?;
        Ok(Some(NgramSpec { layer, hash, columns, conv_width }))
    }

    /// The only layer that adds them, which is recurrent.
    fn ngram_layer(&self, layers: &[LayerSpec]) -> Result<usize, ModelError> {
        let listed = self.checkpoint.integers(&self.name(LAYERS))?;
        let is_recurrent =
            |layer: &usize| layers.get(*layer).is_some_and(|layer| matches!(layer.mixer, MixerSpec::GatedDelta(_)));
        match listed[..] {
            [layer] => usize::try_from(layer).ok().filter(is_recurrent),
            _ => None,
        }
        .ok_or_else(|| self.invalid(LAYERS, format!("{listed:?}"), "one layer with the gated delta rule"))
    }

    /// How n-grams select rows of the table.
    fn ngram_hash(&self, vocab_size: usize) -> Result<NgramHash, ModelError> {
        const END: &str = "ple.eos_token_id";
        const OF_LENGTH: &str = "ple.heads_per_ngram";
        let longest = self.size(LONGEST)?;
        if !(2..=LONGEST_NGRAM).contains(&longest) {
            return Err(self.invalid(LONGEST, longest, format!("between 2 and {LONGEST_NGRAM}")));
        }
        let of_length = self.size(OF_LENGTH)?;
        let heads = of_length * (longest - 1);
        if heads > MOST_HEADS {
            return Err(self.invalid(OF_LENGTH, of_length, format!("at most {}", MOST_HEADS / (longest - 1))));
        }
        let end = self.checkpoint.u32(&self.name(END))?;
        if end as usize >= vocab_size {
            return Err(self.invalid(END, end, format!("below {vocab_size}, the number of tokens")));
        }
        let rows = self.numbers("ple.head_vocab_sizes", heads, 1)?;
        let first = self.numbers("ple.head_offsets", heads, 0)?;
        let multipliers = self.numbers("ple.layer_multipliers", longest, 0)?;
        Ok(NgramHash { multipliers, heads: rows.into_iter().zip(first).collect(), end })
    }

    /// The first `count` numbers of a list, none of which is below `least`.
    fn numbers(&self, key: &str, count: usize, least: u64) -> Result<Vec<u64>, ModelError> {
        let listed = self.checkpoint.integers(&self.name(key))?;
        let numbers: Vec<u64> = listed.iter().take(count).filter_map(|number| u64::try_from(*number).ok()).collect();
        if numbers.len() < count || numbers.iter().any(|number| *number < least) {
            return Err(self.invalid(key, format!("{listed:?}"), format!("{count} numbers, none below {least}")));
        }
        Ok(numbers)
    }
}
