//! TLS to PostgreSQL: an async stream for the driver, over this crate's TLS.

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
            // Certificates are checked if the user named authorities.
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

    /// Also called without TLS, so an unusable configuration is reported later.
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
            poll_fn(|context| stream.poll_handshake(context)).await?;
            Ok(stream)
        })
    }
}

pub(super) struct SecureStream {
    socket: Socket,
    session: tls::TlsClient,
}

/// The socket as rustls expects it: reports `WouldBlock` when it is not ready.
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

fn later<T>(result: io::Result<T>) -> Poll<io::Result<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        result => Poll::Ready(result),
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
    fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_send_or_hear(context))?;
            if !self.session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if ready!(self.poll_receive(context))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            let sent = self.session.write_tls(&mut Ready { socket: &mut self.socket, context });
            if ready!(later(sent))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// As [`poll_send`](Self::poll_send). A server that refuses this client's certificate says so before it
    /// hangs up, while the client still writes: report that instead of the failed write.
    fn poll_send_or_hear(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = self.poll_send(context);
        if let Poll::Ready(Err(_)) = &sent
            && let Poll::Ready(Err(heard)) = self.poll_receive(context)
            && tls::refusal(&heard).is_some()
        {
            return Poll::Ready(Err(heard));
        }
        sent
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let read = self.session.read_tls(&mut Ready { socket: &mut self.socket, context });
        let read = ready!(later(read))?;
        if let Err(error) = self.session.process_new_packets() {
            // Tells the server the reason, if it still listens.
            drop(self.poll_send(context));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
        }
        Poll::Ready(Ok(read))
    }
}

impl AsyncRead for SecureStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        loop {
            match me.session.reader().read(buf.initialize_unfilled()) {
                Ok(read) => {
                    buf.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            ready!(me.poll_receive(context))?;
            // Some messages need an answer that must not wait for the next write.
            if let Poll::Ready(Err(error)) = me.poll_send(context) {
                return Poll::Ready(Err(error));
            }
        }
    }
}

impl AsyncWrite for SecureStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let me = self.get_mut();
        loop {
            let taken = me.session.writer().write(bytes)?;
            let sent = me.poll_send_or_hear(context);
            match (taken, sent) {
                (_, Poll::Ready(Err(error))) => return Poll::Ready(Err(error)),
                // Both the session and the socket are full.
                (0, Poll::Pending) => return Poll::Pending,
                (0, Poll::Ready(Ok(()))) if !bytes.is_empty() => {}
                (taken, _) => return Poll::Ready(Ok(taken)),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        ready!(me.poll_send_or_hear(context))?;
        Pin::new(&mut me.socket).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        me.session.send_close_notify(); // rustls sends it once
        ready!(me.poll_send(context))?;
        Pin::new(&mut me.socket).poll_shutdown(context)
    }
}

impl TlsStream for SecureStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}
