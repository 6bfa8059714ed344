"""The settings of a server: declared once, and handed whole from the command line to every worker process."""

from dataclasses import dataclass, field

from unmask.errors import UserError
from unmask.serving.limits import Limits

MOST_WORKERS = 256  # a greater number is most likely a typing error
LONGEST_WAIT = 86_400  # seconds
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class ServerSettings:
    """Where and how the server answers."""

    host: str = "127.0.0.1"  # address to listen on; 0.0.0.0: reachable from other machines, so set a key
    port: int = 8000  # port to listen on; 0: any free one
    name: str = ""  # model name in the API; none: the folder's name
    workers: int = 1  # processes that share the port, each with the model and some of the cores
    grace: float = 30.0  # seconds for running requests to finish when the server stops
    drain: float = 0.0  # seconds between SIGTERM and closing the port, while /ready says no: for load balancers
    hosts: tuple[str, ...] = ()  # host names to answer to; none: any, or only local ones on 127.0.0.1
    origins: tuple[str, ...] = ()  # other sites whose pages may use the server (CORS): https://example.org
    tracebacks: bool = False  # log failures with their traceback, which may show a prompt
    adapter: tuple[str, ...] = ()  # NAME=FOLDER ...: adapters over the model; a request's `model` chooses one
    classifier: str | None = None  # a folder of `unmask classify --guide`, for requests with a `classifier_label`
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MOST_WORKERS:
            raise UserError(f"a server has 1 to {MOST_WORKERS:,} worker processes; saw {self.workers:,}.")
        if not 0 <= self.port < 65536:
            raise UserError(f"a port is a number from 0 to 65535; saw {self.port}.")
        for name in ("grace", "drain"):
            if not 0 <= getattr(self, name) <= LONGEST_WAIT:
                raise UserError(f"--{name} is 0 to {LONGEST_WAIT:,} seconds; saw {getattr(self, name)}.")
        if len(self.adapters) < len(self.adapter):
            raise UserError("two adapters have the same name: give each --adapter NAME=FOLDER a name of its own.")

    @property
    def adapters(self) -> dict[str, str]:
        folders = {}
        for one in self.adapter:
            name, equals, folder = one.partition("=")
            if not (name and equals and folder):
                raise UserError(f"an adapter is given as NAME=FOLDER, such as poems=runs/poems; saw {one!r}.")
            folders[name] = folder
        return folders

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def host_names(self) -> tuple[str, ...]:
        """The host names that are answered; empty: any. Local ones only on a loopback address, so that pages of
        other sites cannot reach it."""
        return tuple(host.lower() for host in self.hosts) or (LOOPBACK if self.is_local else ())
