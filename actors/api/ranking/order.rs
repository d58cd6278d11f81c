//! Documents in the order of their relevance to a query.

use super::fields::{documents, query};
use crate::api::caller::Caller;
use crate::api::fields::Fields;
use crate::api::server::Server;
use crate::serving::error::ApiError;
use crate::serving::score::{ScoreOptions, ScoreRequest, score};

/// A request to order documents.
pub(super) struct Ordering {
    request: ScoreRequest,
    /// The documents, if they are part of the answer.
    texts: Option<Vec<String>>,
}

/// Documents that were ordered.
pub(super) struct Ordered {
    pub model_id: String,
    /// The index and the score of each document, from the highest score to the lowest.
    pub ranked: Vec<(usize, f32)>,
    /// The documents by index, if they are part of the answer.
    pub texts: Option<Vec<String>>,
    pub prompt_tokens: usize,
}

impl Ordering {
    /// Reads the query, and the documents in the field `name`.
    pub fn read(
        (server, caller): (&Server, &Caller),
        fields: &Fields<'_>,
        name: &str,
        (options, returns_texts): (ScoreOptions, bool),
    ) -> Result<Self, ApiError> {
        let query = query(fields)?;
        let documents = documents(fields, name)?;
        let texts = returns_texts.then(|| documents.iter().map(|document| document.text.clone()).collect());
        let model = fields.string("model")?.map(str::to_owned);
        let tenancy = caller.tenancy(fields, &server.options())?;
        Ok(Ordering { request: ScoreRequest { model, queries: vec![query], documents, options, tenancy }, texts })
    }

    /// `memory` is what the body of the request holds. It is held to the end if the answer repeats the documents.
    pub async fn run(self, server: &Server, memory: impl Send) -> Result<Ordered, ApiError> {
        let Ordering { request, texts } = self;
        let (held, memory) = if texts.is_some() { (Some(memory), None) } else { (None, Some(memory)) };
        let scores = score(&server.models, server.limits(), request, memory).await?;
        drop(held);
        let ranked = ranked(&scores.scores);
        Ok(Ordered { model_id: scores.model_id, ranked, texts, prompt_tokens: scores.prompt_tokens })
    }
}

/// Equal scores stay in their order.
fn ranked(scores: &[f32]) -> Vec<(usize, f32)> {
    let mut ranked: Vec<(usize, f32)> = scores.iter().copied().enumerate().collect();
    ranked.sort_by(|(_, left), (_, right)| right.total_cmp(left));
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_scores_stay_in_their_order() {
        assert_eq!(ranked(&[0.5, 0.9, 0.5, 0.1]), [(1, 0.9), (0, 0.5), (2, 0.5), (3, 0.1)]);
    }
}
