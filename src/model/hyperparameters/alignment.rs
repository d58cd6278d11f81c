//! The heads that attend to the rows of an encoder where a token is spoken.

use cuelight_shaders::attention::Window;

use super::keys::Keys;
use crate::model::error::ModelError;
use crate::model::layer::Heads;

impl Keys<'_> {
    /// The heads of each layer whose weights tell when tokens are spoken: those that the file names, or without a key all heads of
    /// the last half of the layers that attend to an encoder, as in Whisper's own program.
    pub(super) fn alignment_heads(
        &self,
        heads: &[Heads],
        windows: &[Option<Window>],
    ) -> Result<Vec<Vec<usize>>, ModelError> {
        const KEY: &str = "attention.alignment_heads";
        let is_cross = |layer: &usize| matches!(windows[*layer], Some(Window::Before(_)));
        let cross: Vec<usize> = (0..windows.len()).filter(is_cross).collect();
        let mut of_layers = vec![Vec::new(); windows.len()];
        let stated = self.checkpoint.optional_integers(&self.name(KEY))?.filter(|stated| !stated.is_empty());
        let Some(stated) = stated.filter(|_| !cross.is_empty()) else {
            cross[cross.len() / 2..].iter().for_each(|layer| of_layers[*layer] = (0..heads[*layer].n_heads).collect());
            return Ok(of_layers);
        };
        for pair in stated.chunks(2) {
            let found = match pair {
                [layer, head] => usize::try_from(*layer).ok().zip(usize::try_from(*head).ok()),
                _ => None,
            };
            match found.filter(|(layer, head)| cross.contains(layer) && *head < heads[*layer].n_heads) {
                Some((layer, head)) => of_layers[layer].push(head),
                None => {
                    return Err(self.invalid(KEY, format!("{pair:?}"), "heads of layers that attend to an encoder"));
                }
            }
        }
        Ok(of_layers)
    }
}
