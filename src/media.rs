//! Media as input of a language model, images and audio: how a model takes them, and what takes their place in the prompt.

/// What a media item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MediaKind {
    /// An image.
    Image,
    /// Speech, music or other sound.
    Audio,
}

impl MediaKind {
    /// All kinds.
    pub const ALL: [MediaKind; 2] = [MediaKind::Image, MediaKind::Audio];

    /// The type of such a part in the messages that chat templates get: `image`, `audio`.
    #[must_use]
    pub fn part_type(self) -> &'static str {
        match self {
            MediaKind::Image => "image",
            MediaKind::Audio => "audio",
        }
    }

    /// One such item, for people.
    #[must_use]
    pub fn one(self) -> &'static str {
        match self {
            MediaKind::Image => "image",
            MediaKind::Audio => "audio clip",
        }
    }

    /// Several such items, for people.
    #[must_use]
    pub fn several(self) -> &'static str {
        match self {
            MediaKind::Image => "images",
            MediaKind::Audio => "audio",
        }
    }
}

/// How a model takes media of one kind: what the chat template writes for an item, and what takes its place in the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaSpec {
    /// What the chat template writes for an item (`<start_of_image>`, `<image>`, `[IMG]`).
    pub placeholder: String,
    /// The token that stands at the rows of an item (`<image_soft_token>`, `<|AUDIO|>`): the first of these that the vocabulary
    /// has.
    pub row_tokens: Vec<String>,
    /// Whether the rows of an item see each other (Gemma 3, 4), not only the rows before them.
    pub rows_see_each_other: bool,
    /// Values of an embedding row: the hidden size of the text model, and as many for each of its deep layers.
    pub width: usize,
    /// Most rows of one item that are computed at once: those of all tiles of an image, or of a window of audio.
    pub max_rows: usize,
}

/// What takes the place of the placeholder, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MediaPart {
    /// Text in which special tokens are read (`\n\n<start_of_image>`, `<fake_token_around_image><row_1_col_1>`).
    Text(String),
    /// This many embedding rows, in the order of the encoder's output.
    Rows(usize),
    /// As many embedding rows as a grid of `[columns, rows]` has, line by line. The model rotates them by their column and row.
    Grid([usize; 2]),
}

impl MediaPart {
    /// The number of embedding rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            MediaPart::Text(_) => 0,
            MediaPart::Rows(rows) => *rows,
            MediaPart::Grid([columns, rows]) => columns * rows,
        }
    }
}
