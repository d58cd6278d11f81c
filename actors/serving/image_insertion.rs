//! Puts images into a rendered prompt.
//!
//! The chat template writes a placeholder for each image. In its place come the texts and rows of the image: the row token stands
//! once for each row. Where text of a user spells the placeholder or the row token, guards keep it text, so it counts as neither.

use std::ops::Range;

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::chat_template::RenderedPrompt;
use cuelight_engine::vision::{ImagePart, ImageSpec};
use serde_json::{Value, json};

use super::error::ApiError;

/// Rows of an image at consecutive positions of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageSpan {
    /// The image, counted from the first of the conversation.
    pub image: usize,
    /// The position of the first row.
    pub position: usize,
    /// The rows of the image.
    pub rows: Range<usize>,
    /// Columns and rows of the grid that they are, for a model that rotates them by both.
    pub grid: Option<[usize; 2]>,
}

/// What the templates of a model get for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ImageForm {
    /// A part of the message's content, for which the template writes the placeholder.
    Part,
    /// This text, which stands nowhere else, as a part of the content's text. For templates that know only texts.
    Mark(String),
}

impl ImageForm {
    /// A text that stands nowhere in these messages.
    pub fn mark() -> Self {
        ImageForm::Mark(format!("image{}", uuid::Uuid::new_v4().simple()))
    }

    /// The messages as the template takes them.
    pub fn apply(&self, messages: &Value) -> Value {
        match self {
            ImageForm::Part => messages.clone(),
            ImageForm::Mark(mark) => {
                messages.as_array().into_iter().flatten().map(|message| with_text(message, mark)).collect()
            }
        }
    }

    /// Where the template has written for an image.
    fn places(&self, prompt: &RenderedPrompt, placeholder: &str) -> Vec<Range<usize>> {
        let text = match self {
            ImageForm::Part => placeholder,
            ImageForm::Mark(mark) => mark,
        };
        let found = prompt.text.match_indices(text).map(|(start, found)| start..start + found.len());
        found.filter(|place| !prompt.guards.iter().any(|guard| *guard > place.start && *guard < place.end)).collect()
    }
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

/// Replaces the placeholders of a prompt by the images, in order.
///
/// # Errors
/// [`ApiError::InvalidRequest`] when there are more or fewer than images.
pub(super) fn insert(
    prompt: &RenderedPrompt,
    form: &ImageForm,
    spec: &ImageSpec,
    images: &[impl AsRef<[ImagePart]>],
) -> Result<RenderedPrompt, ApiError> {
    let places = form.places(prompt, &spec.placeholder);
    if places.len() != images.len() {
        return Err(wrong_number(places.len(), images.len(), &spec.placeholder));
    }
    let mut inserted = RenderedPrompt::default();
    let (mut copied, mut guards) = (0, prompt.guards.iter().copied().peekable());
    let mut keep_guards = |until: usize, from: usize, to: usize, kept: &mut Vec<usize>| {
        while let Some(guard) = guards.next_if(|guard| *guard <= until) {
            kept.extend((guard >= from).then(|| guard - from + to));
        }
    };
    for (place, image) in places.iter().zip(images) {
        keep_guards(place.start, copied, inserted.text.len(), &mut inserted.guards);
        inserted.text.push_str(&prompt.text[copied..place.start]);
        image.as_ref().iter().for_each(|part| push_part(&mut inserted.text, part, &spec.row_token));
        copied = place.end;
    }
    keep_guards(usize::MAX, copied, inserted.text.len(), &mut inserted.guards);
    inserted.text.push_str(&prompt.text[copied..]);
    Ok(inserted)
}

fn push_part(text: &mut String, part: &ImagePart, row_token: &str) {
    match part {
        ImagePart::Text(part) => text.push_str(part),
        ImagePart::Rows(_) | ImagePart::Grid(_) => text.push_str(&row_token.repeat(part.rows())),
    }
}

/// Finds the rows of images among the tokens of a prompt.
///
/// # Errors
/// [`ApiError::InvalidRequest`] when the row token stands elsewhere, too.
pub(super) fn spans(
    tokens: &[TokenId],
    row_token: TokenId,
    images: &[impl AsRef<[ImagePart]>],
) -> Result<Vec<ImageSpan>, ApiError> {
    let mut positions = tokens.iter().enumerate().filter(|(_, token)| **token == row_token).map(|(index, _)| index);
    let mut spans = Vec::new();
    for (image, parts) in images.iter().enumerate() {
        let mut row = 0;
        for part in parts.as_ref() {
            let (rows, grid) = match part {
                ImagePart::Text(_) => continue,
                ImagePart::Rows(rows) => (*rows, None),
                ImagePart::Grid(grid) => (part.rows(), Some(*grid)),
            };
            let found: Vec<usize> = positions.by_ref().take(rows).collect();
            let position = found.first().copied().unwrap_or(0);
            let is_one_run = found.len() == rows && found.iter().enumerate().all(|(index, at)| *at == position + index);
            if !is_one_run {
                return Err(other_rows());
            }
            spans.push(ImageSpan { image, position, rows: row..row + rows, grid });
            row += rows;
        }
    }
    if positions.next().is_some() { Err(other_rows()) } else { Ok(spans) }
}

fn wrong_number(found: usize, images: usize, placeholder: &str) -> ApiError {
    let message = format!(
        "`messages` have {images} images, but the model's chat template writes {found} placeholders for them ({placeholder}): \
         it takes no images in some of these messages, or a message spells the placeholder"
    );
    ApiError::invalid("messages", message)
}

fn other_rows() -> ApiError {
    ApiError::invalid("messages", "`messages` spell a token that the model has for images; leave it out")
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ImageSpec {
        ImageSpec {
            placeholder: "<image>".to_owned(),
            row_token: "<row>".to_owned(),
            rows_see_each_other: false,
            width: 4,
            max_rows: 9,
        }
    }

    fn image(rows: usize) -> Vec<ImagePart> {
        vec![ImagePart::Text("[".to_owned()), ImagePart::Rows(rows), ImagePart::Text("]".to_owned())]
    }

    fn prompt(text: &str, guards: &[usize]) -> RenderedPrompt {
        RenderedPrompt { text: text.to_owned(), guards: guards.to_vec() }
    }

    #[test]
    fn images_take_the_place_of_placeholders_in_order() {
        let images = [image(2), image(1)];
        let inserted = insert(&prompt("a<image>b<image>c", &[]), &ImageForm::Part, &spec(), &images).unwrap();
        assert_eq!(inserted, prompt("a[<row><row>]b[<row>]c", &[]));
        let mark = ImageForm::Mark("MARK".to_owned());
        let inserted = insert(&prompt("MARK\nMARK", &[]), &mark, &spec(), &images).unwrap();
        assert_eq!(inserted.text, "[<row><row>]\n[<row>]");
    }

    #[test]
    fn what_a_user_spells_is_no_placeholder_and_keeps_its_guards() {
        let text = "<image> <image> <image>";
        // The first and the last are guarded before their last characters.
        let inserted = insert(&prompt(text, &[6, 22]), &ImageForm::Part, &spec(), &[image(1)]).unwrap();
        assert_eq!(inserted, prompt("<image> [<row>] <image>", &[6, 22]));
        let inserted = insert(&prompt(text, &[6, 22]), &ImageForm::Part, &spec(), &[image(2)]).unwrap();
        assert_eq!(inserted, prompt("<image> [<row><row>] <image>", &[6, 27]));
    }

    #[test]
    fn another_number_of_placeholders_is_refused() {
        for (text, guards) in [("none", &[][..]), ("<image><image>", &[]), ("<image>", &[3])] {
            let error = insert(&prompt(text, guards), &ImageForm::Part, &spec(), &[image(1)]).unwrap_err();
            assert!(error.to_string().contains("<image>"), "{error}");
        }
    }

    #[test]
    fn rows_are_found_in_the_tokens_and_nothing_else_may_be_one() {
        let images = [image(2), vec![ImagePart::Rows(1), ImagePart::Text("x".to_owned()), ImagePart::Rows(1)]];
        let span = |image, position, rows| ImageSpan { image, position, rows, grid: None };
        let found = spans(&[1, 9, 9, 2, 9, 3, 9], 9, &images).unwrap();
        assert_eq!(found, [span(0, 1, 0..2), span(1, 4, 0..1), span(1, 6, 1..2)]);
        for tokens in [&[1, 9, 9, 2, 9, 3, 9, 9][..], &[9, 1, 9, 2, 9, 3, 9], &[9, 9], &[]] {
            spans(tokens, 9, &images).unwrap_err();
        }
        let grid = spans(&[9, 9, 9, 9, 9, 9], 9, &[vec![ImagePart::Grid([3, 2])]]).unwrap();
        assert_eq!(grid, [ImageSpan { grid: Some([3, 2]), ..span(0, 0, 0..6) }]);
        // Runs of different images may follow each other at once.
        assert_eq!(spans(&[9, 9, 9, 9], 9, &images).unwrap().len(), 3);
    }

    #[test]
    fn templates_of_texts_get_marks() {
        let parts = json!([{ "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "image" }] }, { "role": "assistant", "content": "b" }]);
        assert_eq!(ImageForm::Part.apply(&parts), parts);
        let read = ImageForm::Mark("MARK".to_owned()).apply(&parts);
        assert_eq!(read, json!([{ "role": "user", "content": "a\nMARK" }, { "role": "assistant", "content": "b" }]));
    }
}
