//! Puts media into a rendered prompt.
//!
//! The chat template writes a placeholder for each item. In its place come the texts and rows of the item: the row token stands
//! once for each row. Where text of a user spells the placeholder or the row token, guards keep it text, so it counts as neither.

use std::ops::Range;

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::chat_template::RenderedPrompt;
use cuelight_engine::media::{MediaKind, MediaPart};
use serde_json::{Value, json};

use super::error::ApiError;
use crate::core::prompt_media::MediaParts;

/// Rows of a media item at consecutive positions of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MediaSpan {
    /// The item, counted from the first of the conversation.
    pub item: usize,
    /// The position of the first row.
    pub position: usize,
    /// The rows of the item.
    pub rows: Range<usize>,
    /// Columns and rows of the grid that they are, for a model that rotates them by both.
    pub grid: Option<[usize; 2]>,
}

/// How a model takes media of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placement<'a> {
    pub kind: MediaKind,
    /// What the chat template writes for an item.
    pub placeholder: &'a str,
    /// What stands at each row of an item.
    pub row_text: &'a str,
    /// The token of that text.
    pub row_token: TokenId,
}

/// What the templates of a model get for a media item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MediaForm {
    /// A part of the message's content, for which the template writes the placeholder.
    Part,
    /// This text, which stands nowhere else, as a part of the content's text. For templates that know only texts.
    Mark(String),
}

impl MediaForm {
    /// A text that stands nowhere in these messages.
    pub fn mark() -> Self {
        MediaForm::Mark(format!("media{}", uuid::Uuid::new_v4().simple()))
    }

    /// The messages as the template takes them.
    pub fn apply(&self, messages: &Value) -> Value {
        match self {
            MediaForm::Part => messages.clone(),
            MediaForm::Mark(mark) => {
                messages.as_array().into_iter().flatten().map(|message| with_text(message, mark)).collect()
            }
        }
    }

    /// Where the template has written for each item, in the order of the prompt.
    fn places(
        &self,
        prompt: &RenderedPrompt,
        placements: &[Placement<'_>],
        media: &[MediaParts],
    ) -> Result<Vec<(Range<usize>, usize)>, ApiError> {
        let all: Vec<usize> = (0..media.len()).collect();
        if let MediaForm::Mark(mark) = self {
            return matched(found(prompt, mark), all, "images and audio", mark);
        }
        let mut places = Vec::with_capacity(media.len());
        for Placement { kind, placeholder, .. } in placements {
            let items = all.iter().copied().filter(|item| media[*item].kind == *kind).collect();
            places.extend(matched(found(prompt, placeholder), items, kind.several(), placeholder)?);
        }
        places.sort_by_key(|(place, _)| place.start);
        Ok(places)
    }
}

/// Where a text stands that no user has spelt.
fn found(prompt: &RenderedPrompt, text: &str) -> Vec<Range<usize>> {
    let found = prompt.text.match_indices(text).map(|(start, found)| start..start + found.len());
    found.filter(|place| !prompt.guards.iter().any(|guard| *guard > place.start && *guard < place.end)).collect()
}

/// The places with the items that belong to them.
fn matched(
    places: Vec<Range<usize>>,
    items: Vec<usize>,
    several: &str,
    placeholder: &str,
) -> Result<Vec<(Range<usize>, usize)>, ApiError> {
    if places.len() == items.len() {
        return Ok(places.into_iter().zip(items).collect());
    }
    let message = format!(
        "`messages` have {several}: {}, but the model's chat template writes {} placeholders for them ({placeholder}): it takes \
         none in some of these messages, or a message spells the placeholder",
        items.len(),
        places.len()
    );
    Err(ApiError::invalid("messages", message))
}

/// A message whose parts are one text.
fn with_text(message: &Value, mark: &str) -> Value {
    let Some(parts) = message["content"].as_array() else { return message.clone() };
    let text = |part: &Value| match part["text"].as_str() {
        Some(text) => text.to_owned(),
        None => mark.to_owned(),
    };
    let mut message = message.clone();
    message["content"] = json!(parts.iter().map(text).collect::<Vec<_>>().join("\n"));
    message
}

/// Replaces the placeholders of a prompt by the media, those of each kind in order.
///
/// # Errors
/// [`ApiError::InvalidRequest`] when there are more or fewer than media.
pub(super) fn insert(
    prompt: &RenderedPrompt,
    form: &MediaForm,
    placements: &[Placement<'_>],
    media: &[MediaParts],
) -> Result<RenderedPrompt, ApiError> {
    let places = form.places(prompt, placements, media)?;
    let mut inserted = RenderedPrompt::default();
    let (mut copied, mut guards) = (0, prompt.guards.iter().copied().peekable());
    let mut keep_guards = |until: usize, from: usize, to: usize, kept: &mut Vec<usize>| {
        while let Some(guard) = guards.next_if(|guard| *guard <= until) {
            kept.extend((guard >= from).then(|| guard - from + to));
        }
    };
    for (place, item) in places {
        let MediaParts { kind, parts } = &media[item];
        let placement = placements.iter().find(|placement| placement.kind == *kind).ok_or(ApiError::Internal)?;
        keep_guards(place.start, copied, inserted.text.len(), &mut inserted.guards);
        inserted.text.push_str(&prompt.text[copied..place.start]);
        parts.iter().for_each(|part| push_part(&mut inserted.text, part, placement.row_text));
        copied = place.end;
    }
    keep_guards(usize::MAX, copied, inserted.text.len(), &mut inserted.guards);
    inserted.text.push_str(&prompt.text[copied..]);
    Ok(inserted)
}

fn push_part(text: &mut String, part: &MediaPart, row_text: &str) {
    match part {
        MediaPart::Text(part) => text.push_str(part),
        MediaPart::Rows(_) | MediaPart::Grid(_) => text.push_str(&row_text.repeat(part.rows())),
    }
}

/// Finds the rows of media among the tokens of a prompt, by position.
///
/// # Errors
/// [`ApiError::InvalidRequest`] when a row token stands elsewhere, too.
pub(super) fn spans(
    tokens: &[TokenId],
    placements: &[Placement<'_>],
    media: &[MediaParts],
) -> Result<Vec<MediaSpan>, ApiError> {
    let mut spans = Vec::new();
    for Placement { kind, row_token, .. } in placements {
        let is_row = |(_, token): &(usize, &TokenId)| *token == row_token;
        let mut positions = tokens.iter().enumerate().filter(is_row).map(|(index, _)| index);
        for (item, MediaParts { parts, .. }) in media.iter().enumerate().filter(|(_, item)| item.kind == *kind) {
            spans.extend(spans_of(item, parts, &mut positions).ok_or_else(|| other_rows(*kind))?);
        }
        if positions.next().is_some() {
            return Err(other_rows(*kind));
        }
    }
    spans.sort_by_key(|span| span.position);
    Ok(spans)
}

/// The rows of one item, which are next among the positions of row tokens. `None` when they are interrupted.
fn spans_of(item: usize, parts: &[MediaPart], positions: &mut impl Iterator<Item = usize>) -> Option<Vec<MediaSpan>> {
    let (mut spans, mut row) = (Vec::new(), 0);
    for part in parts {
        let (rows, grid) = match part {
            MediaPart::Text(_) => continue,
            MediaPart::Rows(rows) => (*rows, None),
            MediaPart::Grid(grid) => (part.rows(), Some(*grid)),
        };
        let found: Vec<usize> = positions.by_ref().take(rows).collect();
        let position = found.first().copied().unwrap_or(0);
        let is_one_run = found.len() == rows && found.iter().enumerate().all(|(index, at)| *at == position + index);
        if !is_one_run {
            return None;
        }
        spans.push(MediaSpan { item, position, rows: row..row + rows, grid });
        row += rows;
    }
    Some(spans)
}

fn other_rows(kind: MediaKind) -> ApiError {
    let message = format!("`messages` spell a token that the model has for {}; leave it out", kind.several());
    ApiError::invalid("messages", message)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    const IMAGES: Placement<'_> =
        Placement { kind: MediaKind::Image, placeholder: "<image>", row_text: "<row>", row_token: 9 };
    const AUDIO: Placement<'_> =
        Placement { kind: MediaKind::Audio, placeholder: "<audio>", row_text: "<tone>", row_token: 8 };

    fn item(kind: MediaKind, parts: Vec<MediaPart>) -> MediaParts {
        MediaParts { kind, parts: parts.into() }
    }

    fn image(rows: usize) -> MediaParts {
        let text = |text: &str| MediaPart::Text(text.to_owned());
        item(MediaKind::Image, vec![text("["), MediaPart::Rows(rows), text("]")])
    }

    fn audio(rows: usize) -> MediaParts {
        item(MediaKind::Audio, vec![MediaPart::Rows(rows)])
    }

    fn prompt(text: &str, guards: &[usize]) -> RenderedPrompt {
        RenderedPrompt { text: text.to_owned(), guards: guards.to_vec() }
    }

    fn insert_images(text: &str, guards: &[usize], images: &[MediaParts]) -> Result<RenderedPrompt, ApiError> {
        insert(&prompt(text, guards), &MediaForm::Part, &[IMAGES], images)
    }

    #[test]
    fn media_take_the_place_of_placeholders_in_order() {
        let images = [image(2), image(1)];
        let inserted = insert_images("a<image>b<image>c", &[], &images).unwrap();
        assert_eq!(inserted, prompt("a[<row><row>]b[<row>]c", &[]));
        let mark = MediaForm::Mark("MARK".to_owned());
        let inserted = insert(&prompt("MARK\nMARK", &[]), &mark, &[IMAGES], &images).unwrap();
        assert_eq!(inserted.text, "[<row><row>]\n[<row>]");
    }

    #[test]
    fn each_kind_has_its_own_places() {
        let media = [image(1), audio(2), image(2)];
        let inserted =
            insert(&prompt("<audio>a<image><image>", &[]), &MediaForm::Part, &[IMAGES, AUDIO], &media).unwrap();
        assert_eq!(inserted.text, "<tone><tone>a[<row>][<row><row>]");
        let mark = MediaForm::Mark("MARK".to_owned());
        let inserted = insert(&prompt("MARKMARKMARK", &[]), &mark, &[IMAGES, AUDIO], &media).unwrap();
        assert_eq!(inserted.text, "[<row>]<tone><tone>[<row><row>]");
        let span = |item, position, rows| MediaSpan { item, position, rows, grid: None };
        let found = spans(&[8, 8, 1, 9, 2, 9, 9], &[IMAGES, AUDIO], &media).unwrap();
        assert_eq!(found, [span(1, 0, 0..2), span(0, 3, 0..1), span(2, 5, 0..2)]);
    }

    #[test]
    fn what_a_user_spells_is_no_placeholder_and_keeps_its_guards() {
        let text = "<image> <image> <image>";
        // The first and the last are guarded before their last characters.
        let inserted = insert_images(text, &[6, 22], &[image(1)]).unwrap();
        assert_eq!(inserted, prompt("<image> [<row>] <image>", &[6, 22]));
        let inserted = insert_images(text, &[6, 22], &[image(2)]).unwrap();
        assert_eq!(inserted, prompt("<image> [<row><row>] <image>", &[6, 27]));
    }

    #[test]
    fn another_number_of_placeholders_is_refused() {
        for (text, guards) in [("none", &[][..]), ("<image><image>", &[]), ("<image>", &[3])] {
            let error = insert_images(text, guards, &[image(1)]).unwrap_err();
            assert!(error.to_string().contains("<image>"), "{error}");
        }
    }

    #[test]
    fn rows_are_found_in_the_tokens_and_nothing_else_may_be_one() {
        let gap = MediaPart::Text("x".to_owned());
        let images = [image(2), item(MediaKind::Image, vec![MediaPart::Rows(1), gap, MediaPart::Rows(1)])];
        let span = |item, position, rows| MediaSpan { item, position, rows, grid: None };
        let find = |tokens: &[TokenId], media: &[MediaParts]| spans(tokens, &[IMAGES], media);
        let found = find(&[1, 9, 9, 2, 9, 3, 9], &images).unwrap();
        assert_eq!(found, [span(0, 1, 0..2), span(1, 4, 0..1), span(1, 6, 1..2)]);
        for tokens in [&[1, 9, 9, 2, 9, 3, 9, 9][..], &[9, 1, 9, 2, 9, 3, 9], &[9, 9], &[]] {
            find(tokens, &images).unwrap_err();
        }
        let grid = find(&[9, 9, 9, 9, 9, 9], &[item(MediaKind::Image, vec![MediaPart::Grid([3, 2])])]).unwrap();
        assert_eq!(grid, [MediaSpan { grid: Some([3, 2]), ..span(0, 0, 0..6) }]);
        // Runs of different images may follow each other at once.
        assert_eq!(find(&[9, 9, 9, 9], &images).unwrap().len(), 3);
    }

    #[test]
    fn templates_of_texts_get_marks() {
        let parts = json!([{ "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "audio" }] }, { "role": "assistant", "content": "b" }]);
        assert_eq!(MediaForm::Part.apply(&parts), parts);
        let read = MediaForm::Mark("MARK".to_owned()).apply(&parts);
        assert_eq!(read, json!([{ "role": "user", "content": "a\nMARK" }, { "role": "assistant", "content": "b" }]));
    }
}
