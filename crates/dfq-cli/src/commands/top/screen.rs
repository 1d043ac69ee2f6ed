//! The terminal while `top` has it.
//!
//! Invariant: however `top` ends, by a key, an error, a signal or a panic, the terminal is as it was.

use std::io::Write;
use std::sync::Once;

use anyhow::Result;
use crossterm::{cursor, terminal};

use super::paint;
use super::snapshot::Snapshot;

/// Puts the terminal back when dropped.
pub(super) struct Screen(());

impl Screen {
    pub(super) fn enter() -> Result<Self> {
        static HOOK: Once = Once::new();
        // A panic prints before anything is dropped; what it says would go with the other screen.
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                leave();
                before(panic);
            }));
        });
        terminal::enable_raw_mode()?;
        // From here on there is something to put back, whatever fails.
        let screen = Self(());
        crossterm::execute!(std::io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    pub(super) fn paint(&mut self, snapshots: &[Snapshot]) -> Result<()> {
        let (width, height) = terminal::size().unwrap_or((80, 24));
        let lines = paint::lines(snapshots, usize::from(width), usize::from(height));
        let mut out = std::io::stdout().lock();
        crossterm::queue!(out, terminal::BeginSynchronizedUpdate)?;
        for (row, line) in lines.iter().enumerate() {
            let row = u16::try_from(row).unwrap_or(u16::MAX);
            crossterm::queue!(out, cursor::MoveTo(0, row))?;
            write!(out, "{line}")?;
            // A full line leaves the cursor on its last letter, which clearing would take away.
            if unicode_width::UnicodeWidthStr::width(line.as_str()) < usize::from(width) {
                crossterm::queue!(out, terminal::Clear(terminal::ClearType::UntilNewLine))?;
            }
        }
        if lines.len() < usize::from(height) {
            let row = u16::try_from(lines.len()).unwrap_or(u16::MAX);
            crossterm::queue!(out, cursor::MoveTo(0, row))?;
            crossterm::queue!(out, terminal::Clear(terminal::ClearType::FromCursorDown))?;
        }
        crossterm::queue!(out, terminal::EndSynchronizedUpdate)?;
        out.flush()?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// Twice does no harm.
fn leave() {
    let mut out = std::io::stdout();
    let _ = crossterm::execute!(out, terminal::LeaveAlternateScreen, cursor::Show);
    let _ = terminal::disable_raw_mode();
}
