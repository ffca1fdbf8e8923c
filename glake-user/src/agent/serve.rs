//! The agent as a whole: what happens in which order, and what ends it.

use super::{
    config::{Config, Layered, Profile, Request},
    http::{Limits, Server},
    lock::Lock,
    notify::{Manager, watchdog_interval},
    privileges,
    sampler::{Order, Sampler, Shared},
    web::Web,
};
use crate::{
    error::{Error, Kind, Result},
    events::source::Source,
    sys::heap,
    telemetry::state::{State, Status},
};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    time::{Duration, Instant},
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};

/// Opens a source with the probes that the configuration wants.
pub type Open = Box<dyn FnOnce(&Config) -> Result<Box<dyn Source>>>;

/// The agent, not yet running.
pub struct Agent {
    /// Its configuration.
    pub layered: Layered,
    /// Where the configuration came from: read again on SIGHUP.
    pub request: Request,
    /// Opens the source.
    pub open: Open,
    /// `/` on a live host.
    pub root: PathBuf,
    /// What a client may cost.
    pub limits: Limits,
    /// The profile `full` for so long, then the configured one.
    pub full_for: Option<Duration>,
}

/// What ends the agent, beside SIGTERM and SIGINT.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// Nothing else.
    Signal,
    /// So much time.
    Elapsed(Duration),
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Whether something wanted could not be watched.
    pub degraded: bool,
}

impl Agent {
    /// Runs until told to end. `report` sees every state.
    ///
    /// # Errors
    /// When it cannot start: the lock, the port, the web configuration, the user.
    pub fn run(self, until: Until, report: &mut dyn FnMut(&State) -> Result<()>) -> Result<Outcome> {
        heap::keep_little();
        let config = self.layered.config.clone();
        if self.full_for.is_some() && config.seal {
            return Err(Error::new(
                Kind::Misuse,
                "--full-for with privileges.seal: a sealed agent cannot change its probes",
            ));
        }
        // What is wrong with the configuration shows before anything is attached.
        let web = Web::read(config.web_config.as_deref())?;
        web.allows(config.listen, config.allow_open)?;
        let _lock = Lock::take(&config.lock, config.listen)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build()
            .map_err(|e| Error::os("starting the runtime", e))?;
        let shared = Arc::new(Shared::new(config.interval));
        let server = runtime.block_on(Server::bind(config.listen, &web, Arc::clone(&shared), self.limits))?;
        let mut wanted = config.clone();
        if self.full_for.is_some() {
            wanted.profile = Profile::Full;
        }
        let mut sampler = Sampler::new((self.open)(&wanted)?, self.root.clone());
        sampler.keep_gpu_events(&config.event_store);
        let manager = Manager::connect();
        log::info!("{}", privileges::drop_privileges(config.user.as_deref(), config.seal)?);
        shared.publish(sampler.step(&shared));
        for reason in shared.newest().iter().flat_map(|newest| &newest.state.health.reasons) {
            log::warn!("degraded: {reason}");
        }
        heap::trim();
        let (orders, received) = channel();
        let thread = {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name("glake-sampler".into());
            builder
                .spawn(move || sampler.run(&shared, &received))
                .map_err(|e| Error::os("starting the sampler", e))?
        };
        let (layered, request, full_for) = (self.layered, self.request, self.full_for);
        let running = Running { layered, request, full_for, shared, manager, orders: orders.clone() };
        let outcome = runtime.block_on(running.run(server, until, report));
        let _ = orders.send(Order::Stop);
        // A source that hangs must not hold up the end: the kernel takes the probes off with the process.
        let ended = Instant::now() + Duration::from_millis(500);
        while !thread.is_finished() && Instant::now() < ended {
            std::thread::sleep(Duration::from_millis(5));
        }
        outcome
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> Result<Signals> {
        let on = |kind| signal(kind).map_err(|e| Error::os("listening for signals", e));
        Ok(Signals {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hangup: on(SignalKind::hangup())?,
        })
    }
}

struct Running {
    layered: Layered,
    request: Request,
    full_for: Option<Duration>,
    shared: Arc<Shared>,
    manager: Manager,
    orders: Sender<Order>,
}

impl Running {
    async fn run(
        mut self,
        server: Server,
        until: Until,
        report: &mut dyn FnMut(&State) -> Result<()>,
    ) -> Result<Outcome> {
        let signals = Signals::listen()?;
        let address = server.address().unwrap_or(self.layered.config.listen);
        let rekey = server.rekey();
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(server.run(stopped));
        let scheme = if self.layered.config.web_config.is_some() { "" } else { "http://" };
        log::info!("answering on {scheme}{address}");
        self.manager.ready(&format!("answering on {address}"));
        let result = self.watch(signals, &rekey, until, report).await;
        self.manager.stopping();
        let _ = stop.send(true);
        let _ = serving.await;
        result?;
        let newest = self.shared.newest();
        Ok(Outcome { degraded: newest.is_none_or(|s| s.state.health.status == Status::Degraded) })
    }

    /// Everything that happens while the agent runs.
    async fn watch(
        &mut self,
        mut signals: Signals,
        rekey: &(dyn Fn(&Web) + Send + Sync),
        until: Until,
        report: &mut dyn FnMut(&State) -> Result<()>,
    ) -> Result<()> {
        let mut readings = self.shared.subscribe();
        let mut alive = tokio::time::interval(watchdog_interval().unwrap_or(Duration::from_secs(3600)));
        let far = Duration::from_secs(3600 * 24 * 365);
        let end = tokio::time::sleep(if let Until::Elapsed(time) = until { time } else { far });
        let quiet = tokio::time::sleep(self.full_for.unwrap_or(far));
        tokio::pin!(end, quiet);
        let mut full = self.full_for.is_some();
        loop {
            tokio::select! {
                _ = signals.terminate.recv() => return Ok(()),
                _ = signals.interrupt.recv() => return Ok(()),
                () = end.as_mut() => return Ok(()),
                _ = signals.hangup.recv() => self.reload(rekey),
                _ = alive.tick() => {
                    // A hanging sampler makes a useless agent: then systemd may start it again.
                    if self.shared.beat_age() < self.shared.stuck_after() {
                        self.manager.watchdog();
                    }
                }
                () = quiet.as_mut(), if full => {
                    full = false;
                    let _ = self.orders.send(Order::Full(self.layered.config.profile == Profile::Full));
                }
                _ = readings.changed() => {
                    if let Some(snapshot) = self.shared.newest() {
                        report(&snapshot.state)?;
                    }
                }
            }
        }
    }

    /// All or nothing: a configuration with anything wrong in it, or with a change that needs a restart, changes nothing.
    fn reload(&mut self, rekey: &(dyn Fn(&Web) + Send + Sync)) {
        self.manager.reloading();
        let result = self.try_reload(rekey);
        self.shared.set_reload_refused(result.is_err());
        match result {
            Ok(()) => {
                log::info!("configuration read again");
                self.manager.ready("configuration read again");
            }
            Err(e) => {
                log::error!("reload refused, nothing was changed: {}", e.chain());
                self.manager.ready("the last reload was refused; the log says why");
            }
        }
    }

    fn try_reload(&mut self, rekey: &(dyn Fn(&Web) + Send + Sync)) -> Result<()> {
        let newer = Layered::read(&self.request)?;
        let restart = self.layered.needs_restart(&newer.config);
        if !restart.is_empty() {
            let keys = restart.join(", ");
            return Err(Error::new(Kind::Misuse, format!("these keys changed and need a restart: {keys}"))
                .remedy("systemctl restart glake, or take the change back"));
        }
        let web = Web::read(newer.config.web_config.as_deref())?;
        web.allows(newer.config.listen, newer.config.allow_open)?;
        rekey(&web);
        log::set_max_level(newer.config.log);
        let _ = self.orders.send(Order::Interval(newer.config.interval));
        self.layered = newer;
        Ok(())
    }
}
