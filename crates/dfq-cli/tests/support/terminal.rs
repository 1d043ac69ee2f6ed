//! The command on a real terminal: a pseudo-terminal of 80 columns.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::{Desk, Said};

impl Desk {
    /// Runs the command on a terminal and types `keys`; answers what the screen was sent.
    pub(crate) fn on_terminal(&self, args: &[&str], keys: &str) -> Said {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let open = || -> OwnedFd {
            std::fs::File::options().read(true).write(true).open(&name).unwrap().into()
        };
        let mut command = self.command(args);
        command.env("TERM", "xterm-256color");
        command.stdin(Stdio::from(open())).stdout(Stdio::from(open())).stderr(Stdio::from(open()));
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut screen = std::fs::File::from(master);
        screen.write_all(keys.as_bytes()).unwrap();
        let mut sent = Vec::new();
        // A terminal that nobody holds open any more answers EIO: that is its end.
        let mut part = [0; 4096];
        while let Ok(read) = screen.read(&mut part) {
            if read == 0 {
                break;
            }
            sent.extend_from_slice(&part[..read]);
        }
        let status = child.wait().unwrap().code();
        let out = String::from_utf8_lossy(&sent).replace("\r\n", "\n");
        Said { command: format!("dfq {}", args.join(" ")), out, err: String::new(), status }
    }
}
