"""The options of mutual TLS, the same for every process."""

from baton.settings.options import OptionInfo

TLS_OPTIONS = {
    "tls_cert": OptionInfo("PEM file with this process's certificate, for mutual TLS between Baton's processes."),
    "tls_key": OptionInfo("PEM file with the certificate's key."),
    "tls_ca": OptionInfo("PEM file with the authority that signed the certificate of every process."),
    "tls_server_name": OptionInfo("A name that is in every process's certificate; unset: the host of its address."),
}
