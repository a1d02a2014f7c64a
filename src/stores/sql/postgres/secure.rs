//! TLS for the driver's connections to PostgreSQL: an async stream on this crate's TLS.

use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

use crate::config::TlsOptions;
use crate::error::Result;
use crate::stores::sql::url::TlsMode;
use crate::tls;

#[derive(Clone)]
pub(super) struct Secure(Option<tls::Config>);

impl Secure {
    pub(super) fn new(mode: TlsMode, options: &TlsOptions) -> Result<Secure> {
        Ok(Secure(match mode {
            TlsMode::Disable => None,
            // The server's name is not checked, and its certificate only if the user named authorities.
            TlsMode::Prefer | TlsMode::Require | TlsMode::VerifyCa => {
                Some(tls::config_for_any_name(options)?)
            }
            TlsMode::VerifyFull => Some(tls::config(options)?),
        }))
    }
}

impl MakeTlsConnect<Socket> for Secure {
    type Stream = SecureStream;
    type TlsConnect = Handshake;
    type Error = io::Error;

    /// The driver calls this even if no TLS is wanted, so only `connect` reports that TLS was not set up.
    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        Ok(Handshake { config: self.0.clone(), host: host.to_owned() })
    }
}

pub(super) struct Handshake {
    config: Option<tls::Config>,
    host: String,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = SecureStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<SecureStream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let config = self.config.ok_or_else(|| io::Error::other("TLS was not set up"))?;
            let session = tls::client(&self.host, &config)?;
            let mut stream = SecureStream { socket, session };
            poll_fn(|context| stream.talk(context, |tls| tls.flush())).await?; // completes the handshake
            Ok(stream)
        })
    }
}

pub(super) struct SecureStream {
    socket: Socket,
    session: tls::TlsClient,
}

/// The socket for rustls, which reports `WouldBlock` when it is not ready.
struct Ready<'a, 'b> {
    socket: &'a mut Socket,
    context: &'a mut Context<'b>,
}

fn now<T>(ready: Poll<io::Result<T>>) -> io::Result<T> {
    match ready {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl Read for Ready<'_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(buf);
        now(Pin::new(&mut *self.socket).poll_read(self.context, &mut buf))?;
        Ok(buf.filled().len())
    }
}

impl Write for Ready<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        now(Pin::new(&mut *self.socket).poll_write(self.context, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        now(Pin::new(&mut *self.socket).poll_flush(self.context))
    }
}

impl SecureStream {
    /// Runs `talk` on a stream that first completes the handshake and writes earlier bytes.
    fn talk<'a, 'b, T>(
        &'a mut self,
        context: &'a mut Context<'b>,
        talk: impl FnOnce(&mut tls::Stream<'_, Ready<'a, 'b>>) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let mut socket = Ready { socket: &mut self.socket, context };
        let done = talk(&mut tls::over(&mut self.session, &mut socket));
        match done {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            Err(error) => Poll::Ready(Err(tls::last_words(&mut self.session, &mut socket, error))),
            done => Poll::Ready(done),
        }
    }
}

impl AsyncRead for SecureStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut read = self.talk(context, |tls| tls.read(buf.initialize_unfilled()));
        if read.is_pending() {
            // If the first call read only messages of TLS, the socket has no waker yet. The second sets it.
            read = self.talk(context, |tls| tls.read(buf.initialize_unfilled()));
        }
        buf.advance(ready!(read)?);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SecureStream {
    /// If the socket fails after rustls has taken the bytes, this call returns their count, and the next call
    /// returns the error.
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.talk(context, |tls| tls.write(bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.talk(context, |tls| tls.flush())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.send_close_notify(); // rustls sends it only once
        ready!(self.talk(context, |tls| tls.flush()))?;
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl TlsStream for SecureStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}
